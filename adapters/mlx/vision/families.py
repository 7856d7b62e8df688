"""The families whose images are computed, by the model type of their config.json.

A family is here once its logits equal those of mlx-vlm: see tests/integration/mlx/test_mlx_vision.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Family:
    """The way of a family's trunk with images. `has_grid`: tokens of an image have rows and columns as positions;
    `is_interleaved`: axes take turns in the frequencies. `is_deep`: features are added behind the first layers too.
    `is_whole`: the tokens of an image attend to all of it. `is_scaled`: the trunk scales what it takes in place of
    tokens, but not features."""

    has_grid: bool = False
    is_interleaved: bool = True
    is_deep: bool = False
    is_whole: bool = False
    is_scaled: bool = False

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Family":
        """The family of a config.json; raises KeyError for one that is not computed."""
        family = FAMILIES[str(config["model_type"])]
        text = cast("Mapping[str, Any]", config.get("text_config") or {})
        if family.is_scaled:  # Gemma 4, of which the smaller ones are causal
            return replace(family, is_whole=text.get("use_bidirectional_attention") == "vision")
        return family

    def sections(self, config: Mapping[str, Any]) -> Sequence[int]:
        """The number of frequencies of each axis, of a family with a grid."""
        text = {**config, **cast("Mapping[str, Any]", config.get("text_config") or {})}
        for name in ("rope_scaling", "rope_parameters"):
            found = cast("Mapping[str, Any]", text.get(name) or {}).get("mrope_section")
            if found:
                return cast("Sequence[int]", found)
        raise ValueError("config.json has no mrope_section")


PLAIN = Family()

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("idefics3", "smolvlm", "llava", "pixtral", "mistral3", "lfm2_vl", "lfm2-vl"), PLAIN),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), Family(has_grid=True, is_interleaved=False)),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), Family(has_grid=True, is_deep=True)),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), Family(has_grid=True)),
    "gemma3": Family(is_whole=True),
    "gemma4": Family(is_scaled=True),
}
