"""The compute port: a loaded model that turns tokens into tokens, and its cached state into payloads and back.

Threading: every method of both protocols is called from one thread only, the compute thread, which also created the
engine. Nothing here blocks on anything but computation. Errors: ComputeFailed for one sequence's failure (the sequence
is then closed, others go on); ModelLoadFailed from `load`; anything else is a defect.

A sequence's *position* is the number of tokens its state covers. Prompt tokens move it by the chunk; a decode step
moves it by the one token it feeds. The end of the prompt gives the first token, so the first decode step feeds nothing
and each later one feeds what the last one gave:

    call         prefill     start_decode        decode     decode     decode
    computes     a chunk     the last chunk                 token 1    token 2
    gives                                        token 1    token 2    token 3

An adapter may run ahead by one decode step (the token it just sampled is already being fed while the caller looks at
it); `position` tells the truth at any time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.errors import DomainError
from domain.ids import SequenceId
from domain.model_card import ModelDescription, ModelSource
from domain.payload import GroupPayloads
from domain.sampling import SamplingParams
from domain.stream import TokenLogprob


@dataclass(frozen=True, slots=True)
class DecodeStart:
    """How a sequence's tokens are chosen.

    `prompt_ids`: the whole prompt, for the repetition penalty. `min_tokens`: `eos_token_ids`, all that end this answer,
    are suppressed until so many tokens are out. `seed`: always set (drawn if the client gave none): the noise of token
    i is a function of (seed, i) alone.
    """

    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One sequence's outcome of one decode step: a token, or the error that ended it."""

    id: SequenceId
    token_id: int = -1
    logprob: TokenLogprob | None = None
    error: DomainError | None = None


class LoadedModel(Protocol):
    """One model in memory and the states of its open sequences."""

    @property
    def description(self) -> ModelDescription: ...

    def open(self, id: SequenceId) -> None:
        """Begin a sequence with an empty state at position 0. The id must not be open."""
        ...

    def restore(self, id: SequenceId, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        """Put an open sequence at `position` from captured state, replacing whatever it held.

        `blocks`: block 0 onward without a gap; ALL groups in each, TRAILING groups at least in those their window
        still reaches. `snapshot`: what `capture_snapshot` gave at `position` (or, without SNAPSHOT groups, what
        `capture_blocks` gave for the partial block); empty where blocks alone suffice. Where a TRAILING slice is
        shorter than its span, nothing before it is needed.
        Raises ComputeFailed when the pieces do not fit; the sequence is then at position 0, empty.
        """
        ...

    def fork(self, id: SequenceId, into: Sequence[SequenceId]) -> None:
        """Open further sequences with the state of one that prefills: the same from here on, and independent of it.

        Cheap: what both have in common is shared until one of them changes it. Raises ComputeFailed, and then none of
        them is open."""
        ...

    def position(self, id: SequenceId) -> int:
        """Tokens covered by the sequence's state, exactly."""
        ...

    def prefill(self, id: SequenceId, token_ids: Sequence[int]) -> None:
        """Append at least one token to the state and compute it. One chunk: the caller chose its bounds.

        The last chunk may still be under way when this returns; whatever reads it waits for it.
        """
        ...

    def start_decode(self, id: SequenceId, token_ids: Sequence[int], start: DecodeStart) -> None:
        """Append the end of the prompt, at least its last token, and choose the first token after it.

        Also one chunk, and as `prefill` it may still be under way when this returns. The sequence takes part in the
        next `decode` that names it. Of a state that cannot be cut by tokens nothing can be had any more for a position
        inside `token_ids`: whoever wants a snapshot at the last but one position gives the last token alone.
        """
        ...

    def decode(self, ids: Sequence[SequenceId]) -> Sequence[DecodeResult]:
        """One token for each named sequence (any subset of the decoding ones), in the order named.

        A sequence's first token was chosen by `start_decode` and waits for no computing of its second. A row that fails
        carries its error; the others are unaffected.
        """
        ...

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        """Copy out token spans [start, end) of every ALL and TRAILING group; every span ends at or before `position`.

        Returned payloads are copies: no live view on the cache remains, and reading one waits until it is computed. A
        TRAILING group gives the longest suffix of the span that it still holds, if that is all of it or at least
        window - 1 tokens (enough to resume anywhere at or after the span's end); with less it is left out of that
        span's mapping. Works while prefilling and while decoding.
        """
        ...

    def capture_snapshot(self, id: SequenceId, block_start: int) -> GroupPayloads:
        """Copy out what resuming at the current position needs beyond full blocks.

        SNAPSHOT groups: their state now. ALL and TRAILING groups: the slice [block_start, position), as
        `capture_blocks` gives it; left out where that is empty.
        """
        ...

    def close(self, ids: Sequence[SequenceId]) -> None:
        """Release sequences in any phase. Ids that are not open are ignored."""
        ...

    def open_ids(self) -> frozenset[SequenceId]:
        """Sequences that hold state; for leak checks."""
        ...


class ComputeEngine(Protocol):
    """Loads models and ends the compute backend."""

    def load(self, source: ModelSource, on_progress: Callable[[str], None]) -> LoadedModel:
        """Load and probe a model. `on_progress` gets short phrases for people. Raises ModelLoadFailed."""
        ...

    def unload(self, model: LoadedModel) -> None:
        """Free a model with all its sequences and return its memory to the system."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by purpose (`active`, `peak`, `cache`, ...), for telemetry. Any thread."""
        ...

    def close(self) -> None:
        """Finish outstanding work and release the thread's backend resources. Last call on the compute thread."""
        ...


__all__ = ("ComputeEngine", "DecodeResult", "DecodeStart", "LoadedModel")
