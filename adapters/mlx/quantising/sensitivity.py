"""The loss of each part of a model by fewer bits: measured once for a source, for all sizes that are made of it.

A part is a kind of matrix of one layer (queries and keys, values, outputs, gate and up, down), an embedding, or the
output matrix. The loss of a part at MEASURED_BITS is the mean KL of the model's distributions over texts when only
this part has so few. To second order it grows with the squared error of the weights, so that that of other
forms follows from their errors. The model is computed layer by layer (`layerwise`), with one variant a part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import cast

import mlx.core as mx

from adapters.mlx.loading.network import cast_network, open_network
from adapters.mlx.quantising.layerwise import Layerwise, Variant, qualities
from adapters.mlx.quantising.rounding import dequantised
from adapters.mlx.runtime.arrays import token_array
from adapters.mlx.runtime.json_files import is_number, read_entries, write_entries
from domain.models.capability import ModelUse
from domain.models.quantisation import BITS, GROUPS, Part, Quantisation

MEASURED_BITS = 3

_TOGETHER = {"q_proj": "queries, keys", "k_proj": "queries, keys", "gate_proj": "gate, up", "up_proj": "gate, up"}
_SAMPLE_ROWS = 128
_TINY = 1e-30
_MAX_REMEMBERED = 64


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


def measure(
    folder: Path,
    use: ModelUse,
    matrices: Sequence[Matrix],
    rows: Sequence[Sequence[int]],
    passed: Callable[[int, int], None],
) -> dict[str, list[float]]:
    """Returns the loss of every part in each of FORMS, by the path of its first matrix. `rows`: texts of equal length
    as tokens. `passed`: called with layers done and all, and may raise to stop. Raises Unmeasurable."""
    network, _ = open_network(folder, use)
    cast_network(network, "auto")
    errors: dict[str, list[float]] = {}

    def fewer(path: str, weight: mx.array) -> mx.array:
        if path not in errors:
            errors[path] = _errors(weight)
        return dequantised(weight, _measured_form(weight), fits=True)

    parts = parts_of(matrices)
    layers = Layerwise(network, [Variant(paths, fewer) for paths in parts])
    tokens = mx.stack([token_array(row) for row in rows])
    layers.run(tokens, lambda done: passed(done, len(layers.layers)))
    found: dict[str, list[float]] = {}
    for paths, quality in zip(parts, qualities(layers, tokens), strict=True):
        total = [sum(values) for values in zip(*(errors[path][:-1] for path in paths), strict=True)]
        measured = max(sum(errors[path][-1] for path in paths), _TINY)
        found[paths[0]] = [max(quality.kl, 0.0) * value / measured for value in total]
    return found


def _measured_form(weight: mx.array) -> Quantisation:
    return Quantisation("affine", MEASURED_BITS, 64 if weight.shape[-1] % 64 == 0 else 32)


def _errors(weight: mx.array) -> list[float]:
    """The squared error of a matrix in each of FORMS, and in the measured one, from a sample of its rows; infinite
    where rows do not divide."""
    rows = mx.reshape(weight, (-1, weight.shape[-1]))
    sample = rows[:: max(1, rows.shape[0] // _SAMPLE_ROWS)].astype(mx.float32)
    scale = rows.shape[0] / sample.shape[0]
    return [
        scale * float(mx.sum(mx.square(sample - dequantised(sample, form, fits=True))))
        if sample.shape[-1] % form.group == 0
        else inf
        for form in (*FORMS, _measured_form(weight))
    ]


def as_parts(losses: Mapping[str, Sequence[float]], matrices: Sequence[Matrix]) -> list[Part]:
    """Returns the parts with their losses and bytes, to assign forms."""
    by_path = {matrix.path: matrix for matrix in matrices}
    return [
        Part(
            paths,
            {
                form: (sum(by_path[path].bytes_in(form) for path in paths), loss)
                for form, loss in zip(FORMS, losses[paths[0]], strict=True)
                if loss < inf
            },
        )
        for paths in parts_of(matrices)
    ]


# ---- remembered ------------------------------------------------------------------------------------------------------


def recall(file: Path | None, key: str) -> dict[str, list[float]] | None:
    """Returns the losses that were measured for a source; None if there are none, or they cannot be read."""
    entry = None if file is None else read_entries(file).get(key)
    if not isinstance(entry, dict):
        return None
    found: dict[str, list[float]] = {}
    for path, losses in cast(dict[str, object], entry).items():
        values = cast(list[object], losses) if isinstance(losses, list) else []
        read = [inf if value is None else value for value in values if value is None or is_number(value)]
        if len(read) != len(FORMS):
            return None
        found[path] = list(map(float, read))
    return found


def remember(file: Path | None, key: str, losses: Mapping[str, Sequence[float]]) -> None:
    if file is not None:
        entries = read_entries(file)
        entries[key] = {path: [None if loss == inf else loss for loss in values] for path, values in losses.items()}
        write_entries(file, entries, _MAX_REMEMBERED)
