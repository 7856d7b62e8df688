"""The loss of each part of a model by fewer bits: measured once for a source, for all sizes that are made of it.

A part is a kind of matrix of one layer (queries and keys, values, outputs, gate and up, down), an embedding, or the
output matrix. The loss of a part at MEASURED_BITS is the mean KL of the model's distributions over texts when only
this part has so few. To second order it grows with the squared error of each output, so that that of other
forms follows from their errors. The model is computed layer by layer (`layerwise`), with one variant a part.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.loading.network import cast_network, open_network
from adapters.mlx.quantising.layerwise import Layerwise, Variant, qualities
from adapters.mlx.quantising.rounding import dequantised, rounded
from adapters.mlx.runtime.arrays import token_array
from domain.models.capability import ModelUse
from domain.models.quantisation import BITS, GROUPS, Part, Quantisation

MEASURED_BITS = 3

_TOGETHER = {"q_proj": "queries, keys", "k_proj": "queries, keys", "gate_proj": "gate, up", "up_proj": "gate, up"}
_SAMPLE_ROWS = 128
_TINY = 1e-30
_MAX_REMEMBERED = 32
_LOSSES, _MOMENTS = "losses of ", "moments of "


FORMS = tuple(Quantisation("affine", bits, group) for bits in BITS for group in GROUPS)
"""The forms that a part may get."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix that a recipe may choose a form for. `shape`: the rows' length last. `item_bytes`: of its dtype, which
    scales and biases have."""

    path: str
    shape: tuple[int, ...]
    item_bytes: int = 2

    def bytes_in(self, form: Quantisation) -> int:
        """The bytes in affine form."""
        length = self.shape[-1]
        return prod(self.shape[:-1]) * (length * form.bits // 8 + 2 * self.item_bytes * (length // form.group))


def parts_of(matrices: Sequence[Matrix]) -> list[tuple[str, ...]]:
    """Returns the paths of each part."""
    found: dict[str, list[str]] = {}
    for matrix in matrices:
        head, _, leaf = matrix.path.rpartition(".")
        found.setdefault(f"{head} {_TOGETHER.get(leaf, leaf)}", []).append(matrix.path)
    return [tuple(paths) for paths in found.values()]


@dataclass(frozen=True, slots=True)
class Sensitivities:
    """`losses`: of every part in each of FORMS, by the path of its first matrix. `moments`: of linear layers, as
    `Layerwise.moments`."""

    losses: Mapping[str, Sequence[float]]
    moments: Mapping[str, mx.array]

    def parts(self, matrices: Sequence[Matrix]) -> list[Part]:
        """Returns the parts with their losses and bytes, to assign forms."""
        by_path = {matrix.path: matrix for matrix in matrices}
        return [
            Part(
                paths,
                {
                    form: (sum(by_path[path].bytes_in(form) for path in paths), loss)
                    for form, loss in zip(FORMS, self.losses[paths[0]], strict=True)
                    if loss < inf
                },
            )
            for paths in parts_of(matrices)
        ]


def measure(
    folder: Path,
    use: ModelUse,
    matrices: Sequence[Matrix],
    rows: Sequence[Sequence[int]],
    passed: Callable[[int, int], None],
) -> Sensitivities:
    """Measures a source. `rows`: texts of equal length as tokens. `passed`: called with layers done and all, and may
    raise to stop. Raises Unmeasurable."""
    network, _ = open_network(folder, use)
    cast_network(network, "auto")
    parts, errors = parts_of(matrices), dict[str, list[float]]()
    layers = Layerwise(network, ())

    def fewer(path: str, weight: mx.array) -> mx.array:
        moments = layers.moments(path)
        if path not in errors:
            errors[path] = _errors(weight, moments)
        return rounded(weight, _measured_form(weight), moments)

    layers.variants = [Variant(paths, fewer) for paths in parts]
    tokens = mx.stack([token_array(row) for row in rows])
    layers.run(tokens, lambda done: passed(done, len(layers.layers)))
    losses: dict[str, list[float]] = {}
    for paths, quality in zip(parts, qualities(layers, tokens), strict=True):
        total = [sum(values) for values in zip(*(errors[path][:-1] for path in paths), strict=True)]
        measured = max(sum(errors[path][-1] for path in paths), _TINY)
        losses[paths[0]] = [max(quality.kl, 0.0) * value / measured for value in total]
    found = {matrix.path: layers.moments(matrix.path) for matrix in matrices}
    return Sensitivities(losses, {path: moments for path, moments in found.items() if moments is not None})


def _measured_form(weight: mx.array) -> Quantisation:
    return Quantisation("affine", MEASURED_BITS, 64 if weight.shape[-1] % 64 == 0 else 32)


def _errors(weight: mx.array, moments: mx.array | None) -> list[float]:
    """The error of a matrix in each of FORMS, and in the measured one, from a sample of its rows; infinite where rows
    do not divide."""
    rows = mx.reshape(weight, (-1, weight.shape[-1]))
    sample = rows[:: max(1, rows.shape[0] // _SAMPLE_ROWS)].astype(mx.float32)
    counts = mx.array(rows.shape[0] / sample.shape[0]) if moments is None else moments
    return [
        float(mx.sum(mx.square(sample - dequantised(sample, form, moments)) * counts))
        if sample.shape[-1] % form.group == 0
        else inf
        for form in (*FORMS, _measured_form(weight))
    ]


# ---- remembered ------------------------------------------------------------------------------------------------------


def recall(folder: Path | None, key: str) -> Sensitivities | None:
    """Returns what was measured of a source; None if nothing was, or it cannot be read."""
    file = None if folder is None else folder / f"{key}.safetensors"
    if file is None or not file.is_file():
        return None
    try:
        arrays = cast("dict[str, mx.array]", mx.load(str(file)))
    except (RuntimeError, ValueError):
        return None
    losses = {name.removeprefix(_LOSSES): array for name, array in arrays.items() if name.startswith(_LOSSES)}
    moments = {name.removeprefix(_MOMENTS): array for name, array in arrays.items() if name.startswith(_MOMENTS)}
    if any(array.shape != (len(FORMS),) or array.dtype != mx.float32 for array in losses.values()):
        return None
    return Sensitivities({path: [float(one) for one in array] for path, array in losses.items()}, moments)


def remember(folder: Path | None, key: str, found: Sensitivities) -> None:
    """Keeps what was measured, and the last of other sources. Errors are ignored: it can be measured again."""
    if folder is None:
        return
    arrays = {f"{_LOSSES}{path}": mx.array(list(values), mx.float32) for path, values in found.losses.items()}
    arrays |= {f"{_MOMENTS}{path}": moments for path, moments in found.moments.items()}
    with suppress(OSError, RuntimeError):
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime)[
            : -(_MAX_REMEMBERED - 1)
        ]:
            old.unlink()
        cast(Any, mx).save_safetensors(str(folder / f"new-{key}.safetensors"), arrays)
        (folder / f"new-{key}.safetensors").rename(folder / f"{key}.safetensors")
