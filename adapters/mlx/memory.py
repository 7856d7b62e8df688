"""Memory that a model needs: estimated from its configuration, measured on prefill chunks, remembered by model.

    shapes of weights and caches, formula of the configuration    shape_of_network    nothing is computed
    peaks of chunks at load and while serving                     PeakMeter           correct the formula
    corrections of earlier starts                                 MeasuredFile        measured.json

MLX counts one peak for the whole process. It is reset before a chunk and read after it; bytes that are active by then
(weights, states, uploads by workers) do not count for the chunk. A chunk that is still under way when its call returns
cannot be measured, so where chunks are queued ahead only some are: the first ones, then one in a while. Chunks shorter
than the longest so far are not measured."""

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.classes import traits_of
from adapters.mlx.caches.leaves import (
    Caches,
    arrays_of,
    grows_by_steps,
    leaf_at,
    new_caches,
    quantisable_layers,
    quantised_layers,
    token_bytes_of,
)
from adapters.mlx.runtime.arrays import finish, parameters
from adapters.mlx.runtime.device import has_metal, most_ahead_bytes, preferred_grid
from adapters.mlx.runtime.json_files import is_count, read_entries, write_entries
from adapters.mlx.speculation.heads import trunk_of
from application.services.lane import Lane
from domain.chunking import PLAIN, Chunking
from domain.errors import ServerUnavailable
from domain.memory.estimate import (
    LEAST_NEAR,
    MOST,
    PeakCorrection,
    has_latents,
    score_bytes_of_config,
    step_of_config,
)
from domain.memory.shape import DenseKV, MemoryShape, StateCost, StepCost
from domain.models.pace import BucketPaces
from domain.models.state_layout import LeafPath, StateKind, StateLayout

_SAMPLING_COPIES = 6
"""float32 copies of a row of logits that choosing a token may hold at once: temperature, sorts and sums of top-p."""

_STEP = 256
"""Tokens by which mlx-lm's caches grow."""

_MASK_BYTES = 3 * 4
"""Bytes of the masks of one pair of an encoder's tokens, while they are made."""

_SHORT, _LONG = 32, 64
"""Lengths of the prompts of zeros whose caches are compared."""

FIRST_CHUNKS, EVERY_CHUNKS = 4, 64
"""The chunks to measure while chunks are queued ahead."""

_KEPT_CHANGE = 0.02
"""The smallest change of a factor that is worth writing."""

_FILE_NAME = "measured.json"
_MAX_REMEMBERED = 256

_MOST_BUCKETS, _MOST_S = 32, 3600.0
"""Bounds of a remembered pace: the number of a depth, and the seconds a token."""


# ---- the estimate --------------------------------------------------------------------------------------------------


def shape_of_network(network: Any, layout: StateLayout, config: Mapping[str, Any]) -> MemoryShape:
    """The estimate before anything was measured, by the largest grid. The network may be names and shapes only. On
    the compute thread."""
    weight_bytes = sum(array.nbytes for _, array in parameters(network))
    if not layout.layers:
        return MemoryShape(weight_bytes=weight_bytes, step=_step_of_encoder(network, config))
    logits = network(mx.zeros((1, 1), dtype=mx.uint32), cache=new_caches(network))
    num_logits, dtype_bytes = int(logits.shape[-1]), int(logits.dtype.size)
    score_bytes = score_bytes_of_config(config, dtype_bytes)
    step = step_of_config(config, dtype_bytes, preferred_grid(), most_ahead_bytes())
    trunk, dense_kv = trunk_of(network), DenseKV()
    if (kept := quantised_layers(trunk)) is None:
        dense_kv = _dense_kv(quantisable_layers(trunk, has_latents=has_latents(config)).values())
    else:  # a chunk dequantises a layer's tokens
        step = replace(step, seen_bytes=step.seen_bytes + kept.layer_bytes)
    return MemoryShape(
        weight_bytes=weight_bytes,
        states=state_costs(layout, network),
        step=step,
        logit_bytes=2 * num_logits * dtype_bytes,
        sample_bytes=4 * _SAMPLING_COPIES * num_logits,
        chunking=Chunking.bounded(preferred_grid(), score_bytes) if has_metal() else PLAIN,
        dense_kv=dense_kv,
    )


def _dense_kv(leaves: Collection[Any]) -> DenseKV:
    layers = [token_bytes_of(leaf) for leaf in leaves]
    if not layers:
        return DenseKV()
    return DenseKV(token_bytes=sum(layers), layer_bytes=max(layers), item_bytes=next(iter(leaves)).keys.dtype.size)


def _step_of_encoder(network: Any, config: Mapping[str, Any]) -> StepCost:
    """All of a pass. Masks of every pair are held beside the scores, which a kernel may not hold."""
    floating = (array for _, array in parameters(network) if mx.issubdtype(array.dtype, mx.floating))
    dtype_bytes = int(next(floating).dtype.size)
    step = step_of_config(config, dtype_bytes, preferred_grid(), most_ahead_bytes())
    is_fused = has_metal() and not score_bytes_of_config(config, dtype_bytes)
    return replace(step, seen_bytes=0, pair_bytes=_MASK_BYTES + (0 if is_fused else step.pair_bytes))


def state_costs(layout: StateLayout, network: Any) -> tuple[StateCost, ...]:
    """The cost of each state group, in the layout's order, and one of the leaves without a group, as if they kept all
    tokens. Read off the shapes of caches at two lengths."""
    short, long = _lazy_caches(network, _SHORT), _lazy_caches(network, _LONG)
    costs = [_group_cost(short, long, group.leaves, group.window) for group in layout.groups]
    others = [path for path, layer in layout.leaves() if layer.kind is StateKind.UNSUPPORTED]
    return (*costs, *([_group_cost(short, long, others, None)] if others else []))


def _lazy_caches(network: Any, num_tokens: int) -> Caches:
    """Caches after a prompt of zeros; only their shapes are known."""
    caches = new_caches(network)
    network(mx.zeros((1, num_tokens), dtype=mx.uint32), cache=caches)
    return caches


def _group_cost(short: Caches, long: Caches, leaves: Sequence[LeafPath], window: int | None) -> StateCost:
    per_token = fixed = 0
    for path in leaves:
        traits = traits_of(leaf_at(long, path))
        before, after = arrays_of(leaf_at(short, path)), arrays_of(leaf_at(long, path))
        if traits is not None and traits.kind is not StateKind.RECURRENT:
            per_token += sum(array.nbytes // array.shape[-2] for array in after)
            continue
        size = sum(array.nbytes for array in after)
        grown = max(0, size - sum(array.nbytes for array in before)) // (_LONG - _SHORT)
        per_token += grown
        fixed += size - grown * _LONG
    if window is not None and any(grows_by_steps(leaf_at(long, path)) for path in leaves):
        window += _STEP
    return StateCost(per_token, window, fixed, _STEP if per_token else 1)


# ---- measured ------------------------------------------------------------------------------------------------------

_highest_bytes = 0


def highest_bytes() -> int:
    """The highest memory use of the process so far, whatever resets there were. Any thread."""
    return max(_highest_bytes, mx.get_peak_memory())


def begin_peak() -> None:
    """Resets MLX's peak. Compute thread only. Waits for the device thread to free the temporaries of earlier work."""
    global _highest_bytes
    finish()
    _highest_bytes = highest_bytes()
    mx.reset_peak_memory()


def peak_bytes() -> int:
    """The peak since `begin_peak` above what is active now, once all queued work is done. Compute thread only."""
    finish()
    return max(0, mx.get_peak_memory() - mx.get_active_memory())


class PeakMeter:
    """The corrected memory estimate of one loaded model. Compute thread only."""

    def __init__(
        self,
        shape: MemoryShape,
        correction: PeakCorrection | None = None,
        keep: Callable[[PeakCorrection], None] = lambda _: None,
        *,
        runs_ahead: bool = False,
    ) -> None:
        """`shape`: before any correction. `keep` is called with a correction that has changed. `runs_ahead`: chunks may
        be under way when their call returns."""
        self._shape, self._keep, self._runs_ahead = shape, keep, runs_ahead
        self._correction = self._kept = correction or PeakCorrection()
        self._num_chunks = self._longest = 0

    @property
    def shape(self) -> MemoryShape:
        """The corrected estimate."""
        return self._correction.applied(self._shape)

    def chunk_by(self, chunking: Chunking) -> None:
        """Counts chunks by this rule."""
        self._shape = replace(self._shape, chunking=chunking)

    @property
    def is_new(self) -> bool:
        """True if this model was never measured."""
        return not self._correction.num_measured

    def loaded(self, chunk: int, peaks: Mapping[int, int]) -> None:
        """Takes the peaks measured by a load: see `PeakCorrection.of_load`."""
        self._correction = self._kept = PeakCorrection.of_load(self._shape, chunk, peaks)
        self._longest = chunk
        self._keep(self._correction)

    def begin(self, chunk: int, finish: Callable[[], None]) -> bool:
        """Called before a chunk of `chunk` tokens; returns whether it is measured. `finish` waits for every chunk."""
        if chunk < self._longest:
            return False
        self._longest = chunk
        self._num_chunks += 1
        if self._runs_ahead and self._num_chunks > FIRST_CHUNKS and self._num_chunks % EVERY_CHUNKS:
            return False
        finish()
        begin_peak()
        return True

    def end(self, chunk: int, position: int, finish: Callable[[], None]) -> bool:
        """Called after a measured chunk up to `position` whose logits were not computed; returns whether `shape`
        changed."""
        finish()
        self._correction = now = self._correction.learnt(self._shape, chunk, position, peak_bytes())
        if max(abs(now.near - self._kept.near), abs(now.deep - self._kept.deep)) < _KEPT_CHANGE:
            return False
        self._kept = now
        self._keep(now)
        return True


# ---- remembered ----------------------------------------------------------------------------------------------------


class MeasuredFile:
    """Measurements of earlier starts, by model, in a small JSON file beside the remembered weight digests:

        {"peaks of <content>": [near, deep, num_measured], "costs of <content>, <drafter>": [pass_ms, draft_ms],
         "pace of <content>": [[bucket, seconds a token], ...], ...}

    Compute thread; the disk is touched in `lane` only, since a volume that hangs must not stop a prefill. At most one
    write waits there, with the latest entry of each model.
    """

    def __init__(self, folder: Path, lane: Lane) -> None:
        self._path, self._lane = folder / _FILE_NAME, lane
        self._unsaved: dict[str, object] = {}
        self._saving: Future[None] | None = None

    def recall(self, key: str) -> Generator[Future[Any] | None, None, object]:
        """Returns the unchecked entry; None if there is none."""
        found = self._lane.submit(read_entries, self._path)
        yield found
        return found.result().get(key)

    def remember(self, key: str, entry: object) -> None:
        """Schedules an entry that JSON can hold to be written."""
        self._unsaved[key] = entry
        if self._saving is not None and not (self._saving.running() or self._saving.done()):
            return  # the waiting write will include it
        try:
            self._saving = self._lane.submit(self._save)
        except ServerUnavailable:  # the lane is closed; the next start measures again
            return

    def _save(self) -> None:
        while self._unsaved:
            key, entry = self._unsaved.popitem()
            entries = read_entries(self._path)
            entries.pop(key, None)
            write_entries(self._path, {**entries, key: entry}, _MAX_REMEMBERED)


def paces_of(entry: object) -> BucketPaces:
    """Returns the valid pairs (bucket, seconds a token) of an entry."""
    found = dict[int, float]()
    for pair in cast(list[object], entry) if isinstance(entry, list) else ():
        match pair:
            case [int(bucket), float(paced_s)] if is_count(bucket) and bucket < _MOST_BUCKETS and 0 < paced_s < _MOST_S:
                found[bucket] = paced_s
            case _:
                pass
    return tuple(found.items())


def correction_of(entry: object) -> PeakCorrection:
    """Returns the correction that an entry (near, deep, num_measured) holds; an empty one if it is invalid."""
    match entry:
        case [float(near), float(deep), int(count)] if LEAST_NEAR <= near <= MOST and 0 <= deep <= MOST and count >= 0:
            return PeakCorrection(near, deep, count)
        case _:
            return PeakCorrection()
