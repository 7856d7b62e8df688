"""The form of a model's weights, by its config.json: what people read in a list of models before any is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}
_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


@dataclass(frozen=True, slots=True)
class WeightForm:
    """Empty where config.json does not say. `family`: the model type. `quantization`: by GGUF's names, as `Q4` or
    `BF16`. `bits`: of one weight, with its share of scales and biases; 0 if unknown."""

    family: str = ""
    quantization: str = ""
    bits: float = 0.0

    def parameters(self, file_bytes: int) -> str:
        """Returns the number of parameters in files of this length, as `8.0B`, an estimate; empty if unknown."""
        num = file_bytes * 8 / self.bits if self.bits else 0
        unit, name = next(((unit, name) for unit, name in _UNITS if num >= unit), (0.0, ""))
        return f"{num / unit:.1f}{name}" if unit else ""


def form_of(config: Mapping[str, Any]) -> WeightForm:
    """Reads config.json."""
    family, text = str(config.get("model_type") or ""), _object(config.get("text_config"))
    table = _object(config.get("quantization"))
    bits, group = table.get("bits"), table.get("group_size")
    if isinstance(bits, int) and isinstance(group, int) and 1 <= bits <= 16 and group >= 1:
        mode = str(table.get("mode") or "affine")
        scale_bits = 32 if mode == "affine" else 8  # affine: a scale and a bias of 16 bits a group
        return WeightForm(family, f"Q{bits}" if mode == "affine" else mode.upper(), bits + scale_bits / group)
    dtypes = (one.get(name) for one in (config, text) for name in ("dtype", "torch_dtype"))
    dtype = next((one for one in dtypes if isinstance(one, str)), "")
    return WeightForm(family, _NAMES.get(dtype, ""), _BITS.get(dtype, 0))


def _object(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
