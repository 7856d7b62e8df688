"""How a toy model is made: its layers, its weights (a number), how it answers and how it fails."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.models.model_card import DecodeMode
from domain.models.state_layout import LayerState, StateKind, StateLayout

EOS_ID = 258
VOCAB_SIZE = 260

SLICED = LayerState(StateKind.SLICED, "FakeSliced")
RECURRENT = LayerState(StateKind.RECURRENT, "FakeRecurrent")


def windowed(window: int) -> LayerState:
    """A layer that looks back `window` tokens."""
    return LayerState(StateKind.WINDOWED, "FakeWindowed", window=window)


COMPOSITE = LayerState(StateKind.COMPOSITE, "FakePair", children=(RECURRENT, SLICED))

ATTENTION = StateLayout((SLICED, SLICED))
WINDOWED = StateLayout((windowed(40), SLICED, windowed(40)))
RECURRENT_ONLY = StateLayout((RECURRENT, RECURRENT))
HYBRID = StateLayout((RECURRENT, SLICED, RECURRENT))
COMPOSITE_PAIRS = StateLayout((COMPOSITE, COMPOSITE))
EVERYTHING = StateLayout((SLICED, windowed(24), RECURRENT, COMPOSITE, windowed(70)))
UNSUPPORTED = StateLayout((SLICED, LayerState(StateKind.UNSUPPORTED, "FakeOddCache")))

LAYOUTS: dict[str, StateLayout] = {
    "attention": ATTENTION,
    "windowed": WINDOWED,
    "recurrent": RECURRENT_ONLY,
    "hybrid": HYBRID,
    "composite": COMPOSITE_PAIRS,
    "everything": EVERYTHING,
    "unsupported": UNSUPPORTED,
}

Hook: TypeAlias = Callable[[str, SequenceId | None, int], None]
"""Called before each operation with its name (`prefill`, `decode`, `restore`, `capture_blocks`, ...), the sequence
(None for `load`) and how many times this operation has run for it before. It may wait, or raise: a DomainError is that
sequence's failure, anything else a defect of the engine."""

Reply: TypeAlias = Callable[[IdRow], Sequence[int]]
"""Prompt ids to the exact tokens of the answer (EOS follows by itself)."""


@dataclass(frozen=True, slots=True)
class FakeOptions:
    """One toy model.

    `weights`: two models with the same number compute the same. `alphabet`: the tokens it likes to say (bytes of
    printable ASCII by default, so that answers are text). `eos_every`: EOS comes about once in so many tokens, 0 for
    never. `reply`: fixed answers instead of computed ones. `chunk_sensitive`: a chunk's length enters the state, as
    rounding does on real hardware, so that only canonical chunking reproduces a state. `runs_ahead`: decode feeds
    the token it just sampled at once, so `position` is one further. `tokens_per_step`: a decode step gives up to so
    many tokens, as where a draft is checked; which ones does not depend on it. `load_error`: `load` fails with this
    message, after `load_pieces` pieces and once `load_waits_for` is done.
    """

    layout: StateLayout = ATTENTION
    weights: int = 1
    vocab_size: int = VOCAB_SIZE
    alphabet: Sequence[int] = range(32, 127)
    eos_id: int = EOS_ID
    eos_every: int = 64
    context_length: int = 32_768
    weight_bytes: int = 1_000_000
    decode_mode: DecodeMode = DecodeMode.BATCHED
    reply: Reply | None = None
    hook: Hook | None = None
    chunk_sensitive: bool = False
    runs_ahead: bool = False
    tokens_per_step: int = 1
    load_error: str | None = None
    load_pieces: int = 0
    load_waits_for: Future[None] | None = None


def reply_with(text: str) -> Reply:
    """Answer every prompt with `text`, in the fake tokenizer's bytes."""
    token_ids = tuple(text.encode())
    return lambda _prompt_ids: token_ids
