"""A probe of a model's code at load, with a few toy tokens.

It finds out whether prefill works on this device, which shapes captured state has, whether decoding two sequences of
different length in one batch gives the logits of decoding each alone, and whether the verification of a draft, of which
a token is rejected, gives those of decoding token by token. Families for which it does not are decoded one sequence at
a time, or without drafts.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, layout_of, live_arrays, new_caches
from adapters.mlx.caches.rollback import Rollback
from adapters.mlx.caches.rows import make_room, merge, unbatchable
from adapters.mlx.runtime.arrays import evaluate, token_array
from adapters.mlx.speculation.drafting import family_of
from adapters.mlx.speculation.heads import logits_of, text_model
from adapters.mlx.state.capture import HeldRow, copy_snapshot
from adapters.mlx.state.restore import GroupSpecs
from domain.errors import ModelLoadFailed
from domain.models.model_card import DecodeMode
from domain.models.state_layout import StateLayout

WRONG_WHEN_BATCHED = {
    "afm7": "the layers that reuse keys count the padding of a batch as positions",
    "longcat_flash_sparse": "its indexer counts the padding of a batch as positions once a prompt is long enough",
    "minimax_m3_vl": "its sparse attention blocks move with the padding of a batch once a prompt is long enough",
}
"""Families whose error a short probe may not show, by the module of mlx-lm or mlx-vlm with their code."""

WRONG_WITH_DRAFTS = {
    "plamo3": "with a full window its attention depends on how the tokens are divided into passes",
}
"""The same for verifying drafts."""

_SHORT, _LONG, _NUM_STEPS = 3, 27, 4
_SHARP, _HALF = 0.02, 0.12
"""The largest accepted root mean square difference of a row, in standard deviations of the logits. Wrong families
differ by about 1; correct ones of 36 layers in bfloat16 reach 0.055 on a GPU, as prefill and decode differ. The maximum
over all logits would grow with the vocabulary."""


_Steps: TypeAlias = Sequence[mx.array]
"""The logits [rows, vocab] of each of some decode steps."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of the probe. `num_logits`: width of the output. `specs`: captured state by group. `decode_note`: why
    decode is SINGLE. `draft_note`: why drafts cannot be verified; empty if they can."""

    layout: StateLayout
    num_logits: int
    specs: GroupSpecs
    decode_mode: DecodeMode
    decode_note: str = ""
    draft_note: str = ""


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
    note, draft_note = yield from _notes(network, layout, vocab_size, caches)
    mode = DecodeMode.SINGLE if note else DecodeMode.BATCHED
    return Probe(layout, logits.shape[-1], specs, mode, note, draft_note)


def check_hidden(network: Any) -> None:
    """Raises ModelLoadFailed unless the hidden states that vectors are made of are those that the logits come from:
    a family may scale or norm them outside of the module that is run for them."""
    tokens = token_array(toy_tokens(_LONG, None))[None]
    try:
        hidden = text_model(network).model(tokens, cache=new_caches(network))
        why = _note("other logits", [logits_of(network, hidden)[0]], [network(tokens, cache=new_caches(network))[0]])
    except Exception as error:
        why = f"{type(error).__name__}: {str(error)[:200]}"
    if why:
        raise ModelLoadFailed(f"{family_of(network)} cannot embed or score, its hidden states are elsewhere: {why}")


def _notes(
    network: Any, layout: StateLayout, vocab_size: int | None, long: Caches
) -> Generator[None, None, tuple[str, str]]:
    """Why the model decodes one sequence at a time, and why it does so without drafts; empty if it does not. `long`:
    caches after the longer prompt."""
    family, classes = family_of(network), unbatchable(new_caches(network))
    if layout.unsupported:
        return f"mlx-lm cannot batch {classes}", f"a {', '.join(layout.unsupported)} cannot be put back"
    single = WRONG_WHEN_BATCHED.get(family) or (f"mlx-lm cannot batch {classes}" if classes else "")
    undrafted = WRONG_WITH_DRAFTS.get(family, "")
    expected = yield from _decoded(network, long, 1, vocab_size)
    states = [(long, expected)]
    if not single:
        try:
            short = prefilled(network, _SHORT, vocab_size)[0]
            alone = yield from _decoded(network, short, 1, vocab_size)
            both = [mx.concatenate(list(logits)) for logits in zip(alone, expected, strict=True)]
            batch = merge([short, long])
            found = yield from _decoded(network, batch, 2, vocab_size)
            single = _note("batched decode differs from single decode", found, both)
            states += [] if single else [(batch, both)]
        except Exception as error:
            single = f"batched decode raises {type(error).__name__}: {str(error)[:200]}"
    for caches, logits in states:
        undrafted = undrafted or (yield from _why_undrafted(network, caches, logits, vocab_size))
    return single, undrafted


def toy_tokens(count: int, vocab_size: int | None) -> list[int]:
    """Token ids of any vocabulary, in an order without a meaning."""
    return [(17 * index + 5) % min(vocab_size or 100, 100) for index in range(count)]


def prefilled(network: Any, length: int, vocab_size: int | None) -> tuple[Caches, mx.array]:
    """The state after `length` toy tokens, and the logits of the last one, [1, vocab]."""
    caches = new_caches(network)
    logits = network(token_array(toy_tokens(length, vocab_size))[None], cache=caches)[:, -1]
    evaluate([logits, *live_arrays(caches)])
    return caches, logits


def _decoded(network: Any, caches: Caches, num_rows: int, vocab_size: int | None) -> Generator[None, None, _Steps]:
    """The logits of a few decode steps, after which the caches are where they were."""
    rollback, found = Rollback(caches), list[mx.array]()
    for token in toy_tokens(_NUM_STEPS, vocab_size):
        make_room(caches, 1)
        found.append(network(mx.full((num_rows, 1), token, dtype=mx.uint32), cache=caches)[:, -1])
        evaluate([found[-1], *live_arrays(caches)])
        yield
    rollback.undo(_NUM_STEPS, 0)
    return found


def _why_undrafted(
    network: Any, caches: Caches, expected: _Steps, vocab_size: int | None
) -> Generator[None, None, str]:
    """Empty if a draft of two tokens, of which the second is rejected, and the step behind it have the logits of
    decode steps; otherwise the reason."""
    first, second, third, wrong = toy_tokens(_NUM_STEPS, vocab_size)
    try:
        rollback, num_rows = Rollback(caches), expected[0].shape[0]
        make_room(caches, 3)
        fed = mx.array([[first, second, wrong]] * num_rows, dtype=mx.uint32)
        logits = network(fed, cache=caches)
        evaluate([logits])
        yield
        if num_again := rollback.undo(3, 2):
            make_room(caches, num_again)
            network(fed[:, :num_again], cache=caches)
        after = network(mx.full((num_rows, 1), third, dtype=mx.uint32), cache=caches)[:, -1]
        found = [logits[:, 0], logits[:, 1], after]
        return _note("verifying a draft differs from decoding token by token", found, expected[:3])
    except Exception as error:
        return f"verifying a draft raises {type(error).__name__}: {str(error)[:200]}"


def _note(what: str, found: _Steps, expected: _Steps) -> str:
    """Empty if no row's logits differ by much."""
    limit, differences = limit_of(found[0].dtype), list[float]()
    for one, other in zip(found, expected, strict=True):
        differences.append(cast(float, mx.max(deviations(one, other)).item()))
    wrong = [difference for difference in differences if not difference <= limit]
    return f"{what} by {max(wrong):.2g} standard deviations of the logits" if wrong else ""


def deviations(found: mx.array, expected: mx.array) -> mx.array:
    """The root mean square difference of each row, in standard deviations of the expected logits."""
    one, other = found.astype(mx.float32), expected.astype(mx.float32)
    return mx.sqrt(mx.mean(mx.square(one - other), axis=-1)) / mx.maximum(mx.std(other), 1e-6)


def limit_of(dtype: mx.Dtype) -> float:
    """The largest accepted deviation of logits of this type."""
    return _SHARP if dtype == mx.float32 else _HALF


def _short_name(array: mx.array) -> str:
    return str(array.dtype).removeprefix("mlx.core.")
