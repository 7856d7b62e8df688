"""A probe of a model's code at load, with a few toy tokens.

It finds out whether prefill works on this device, which shapes captured state has, and whether decoding two sequences
of different length in one batch gives the logits of decoding each alone. Families for which it does not are decoded one
sequence at a time.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, layout_of, live_arrays, new_caches
from adapters.mlx.caches.rows import merge, unbatchable
from adapters.mlx.runtime.arrays import evaluate, token_array
from adapters.mlx.speculation.drafting import family_of
from adapters.mlx.state.capture import HeldRow, copy_snapshot
from adapters.mlx.state.restore import GroupSpecs
from domain.errors import ModelLoadFailed
from domain.models.model_card import DecodeMode
from domain.models.state_layout import StateLayout

WRONG_WHEN_BATCHED = {
    "afm7": "the layers that reuse keys count the padding of a batch as positions",
    "minimax_m3_vl": "its sparse attention blocks move with the padding of a batch once a prompt is long enough",
}
"""Families whose error a short probe may not show, by the module of mlx-lm with their code."""

_SHORT, _LONG, _STEPS = 3, 27, 4
_TOLERANCE = {mx.float32: 0.02}
_HALF_TOLERANCE = 0.12
"""The largest accepted root mean square difference of a row, in standard deviations of the logits. Wrong families
differ by about 1; correct ones of 36 layers in bfloat16 reach 0.055 on a GPU, as prefill and decode differ. The maximum
over all logits would grow with the vocabulary."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of the probe. `num_logits`: width of the output. `specs`: captured state by group. `decode_note`: why
    decode is SINGLE."""

    layout: StateLayout
    num_logits: int
    specs: GroupSpecs
    decode_mode: DecodeMode
    decode_note: str = ""


def probe(network: Any, vocab_size: int | None) -> Generator[None, None, Probe]:
    """Runs the probe, a forward pass or two at a time. Raises ModelLoadFailed if the model cannot compute on this
    device. Leaves nothing behind."""
    layout = layout_of(new_caches(network))
    try:
        caches, logits = prefilled(network, _LONG, vocab_size)
    except Exception as error:
        raise ModelLoadFailed(f"the model's first forward pass failed on this device: {error}") from error
    if not mx.all(mx.isfinite(logits)).item():
        raise ModelLoadFailed(f"the model computes infinities or NaN in {_short_name(logits)}; try another --dtype")
    specs: GroupSpecs = {}
    if layout.is_reusable:
        snapshot = copy_snapshot(layout, HeldRow(caches, 0, _LONG), 0)
        specs = {int(index): payload.specs for index, payload in snapshot.items()}
    yield
    note = WRONG_WHEN_BATCHED.get(family_of(network)) or (yield from _why_single(network, vocab_size, caches))
    mode = DecodeMode.SINGLE if note else DecodeMode.BATCHED
    return Probe(layout, logits.shape[-1], specs, mode, note)


def _toy_tokens(count: int, vocab_size: int | None) -> list[int]:
    return [(17 * index + 5) % min(vocab_size or 100, 100) for index in range(count)]


def prefilled(network: Any, length: int, vocab_size: int | None) -> tuple[Caches, mx.array]:
    """The state after `length` toy tokens, and the logits of the last one, [1, vocab]."""
    caches = new_caches(network)
    logits = network(token_array(_toy_tokens(length, vocab_size))[None], cache=caches)[:, -1]
    evaluate([logits, *live_arrays(caches)])
    return caches, logits


def _why_single(network: Any, vocab_size: int | None, long: Caches) -> Generator[None, None, str]:
    """Empty if batched decode equals single decode; otherwise the reason. `long`: caches after the longer prompt."""
    classes = unbatchable(new_caches(network))
    if classes:
        return f"mlx-lm cannot batch {classes}"
    try:
        difference, dtype = yield from _batch_error(network, vocab_size, long)
    except Exception as error:
        return f"batched decode raises {type(error).__name__}: {str(error)[:200]}"
    if not difference <= _TOLERANCE.get(dtype, _HALF_TOLERANCE):
        return f"batched decode differs from single decode by {difference:.2g} standard deviations of the logits"
    return ""


def _batch_error(network: Any, vocab_size: int | None, long: Caches) -> Generator[None, None, tuple[float, mx.Dtype]]:
    """The largest root mean square difference of a row's logits over a few steps, in standard deviations, and the
    logits' dtype. A batch leaves the rows it was made of unchanged, so no prompt is computed twice."""
    alone = [prefilled(network, _SHORT, vocab_size)[0], long]
    yield
    batch = merge(alone)
    worst, dtype = 0.0, mx.float32
    for token in _toy_tokens(_STEPS, vocab_size):
        inputs = mx.array([[token], [token]], dtype=mx.uint32)
        expected = mx.concatenate([network(inputs[:1], cache=caches)[:, -1] for caches in alone])
        found = network(inputs, cache=batch)[:, -1]
        dtype = found.dtype
        expected, found = expected.astype(mx.float32), found.astype(mx.float32)
        distances = mx.sqrt(mx.mean(mx.square(found - expected), axis=-1))
        difference = mx.max(distances) / mx.maximum(mx.std(expected), 1e-6)
        worst = max(worst, cast(float, difference.item()))
        if worst != worst:
            return worst, dtype
        yield
    return worst, dtype


def _short_name(array: mx.array) -> str:
    return str(array.dtype).removeprefix("mlx.core.")
