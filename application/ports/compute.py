"""The compute port: loaded models, split by what they can do.

    capability     who needs it        Protocol
    generating     the engine          Generating
    state access   the prefix cache    StateAccess (application.ports.state_access)

A LoadedModel has both. What a model of another kind can do is a Protocol beside these.

Threading: every method of every Protocol is called from one thread only, the compute thread, which also created the
engine. Nothing here blocks on anything but computation. Errors: ComputeFailed for one sequence's failure (the sequence
is then closed, others go on); ModelLoadFailed from `load`; anything else is a defect.

A sequence's *position* is the number of tokens its state covers. Prompt tokens move it by the chunk; a decode step
moves it by the tokens it feeds. The end of the prompt gives the first token, so the first decode step feeds nothing
and each later one feeds what the last one gave:

    call         prefill     start_decode        decode     decode     decode
    computes     a chunk     the last chunk                 token 1    token 2
    gives                                        token 1    token 2    token 3

A step may give several tokens (a draft that the model agreed with): all but the last of them are fed by then. And an
adapter may run ahead by one token (the one it just sampled is already being fed while the caller looks at it). So
after `n` tokens the position is `n - 1` or `n` behind the prompt; `position` tells the truth at any time.
"""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol, TypeAlias

from application.ports.state_access import StateAccess
from application.ports.token_constraint import TokenConstraint
from domain.errors import DomainError
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.request.sampling import SamplingParams
from domain.request.stream import TokenLogprob


@dataclass(frozen=True, slots=True)
class DecodeStart:
    """How a sequence's tokens are chosen.

    `prompt_ids`: the whole prompt, for the repetition penalty. `min_tokens`: `eos_token_ids`, all that end this answer,
    are suppressed until so many tokens are out. `seed`: always set (drawn if the client gave none): the noise of token
    i is a function of (seed, i) alone. `constraint`: what allows its tokens, if the answer has a grammar; nothing else
    but this sequence uses it. Where it allows only tokens that end the answer, `min_tokens` suppresses none.
    `output_ids`: what the answer has already, of a sequence that was preempted: it was prefilled behind the prompt,
    accepted by `constraint`, and counts as if it had been decoded here.
    """

    prompt_ids: IdRow
    sampling: SamplingParams
    _: KW_ONLY
    seed: int
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    constraint: TokenConstraint | None = None
    output_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One sequence's outcome of one decode step: one token or several, or the error that ended it.

    `logprobs`: one for each token where `num_logprobs` asked for them, else empty.
    """

    id: SequenceId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: DomainError | None = None


PromptScores: TypeAlias = Sequence[TokenLogprob | None]
"""How likely the model found each token of one call's `token_ids`, in order; empty where that was not asked for.

Of the model's own distribution, before any sampling setting, with `rank`. None for a token whose predecessor's output
is not known: the first of a prompt, the first after a restore, the first after a chunk that was not scored.
"""


class Generating(Protocol):
    """Sequences from their prompt's first token to their last."""

    def open(self, id: SequenceId) -> None:
        """Begin a sequence with an empty state at position 0. The id must not be open."""
        ...

    def fork(self, id: SequenceId, into: Sequence[SequenceId]) -> None:
        """Open each of `into` with what `id`, which must not decode yet, holds: its state, at its present position.

        Costs next to nothing now: memory is shared until one of them computes on, which copies its whole state, and
        from then on none changes another. So each fork is to be charged like a sequence at this position. When it
        fails, none of `into` is open.
        """
        ...

    def prefill(
        self, id: SequenceId, token_ids: Sequence[int], *, num_prompt_logprobs: int | None = None
    ) -> PromptScores:
        """Append at least one token to the state and compute it. One chunk: the caller chose its bounds.

        `num_prompt_logprobs`: score these tokens, each with so many of the likeliest alternatives (0 for none); None
        scores nothing. The state is the same either way. Scoring waits for the chunk and takes the memory of all its
        logits, in the model's dtype. Where nothing is scored, the last chunk may still be under way when this returns;
        whatever reads it waits for it.
        """
        ...

    def start_decode(
        self, id: SequenceId, token_ids: Sequence[int], start: DecodeStart, *, num_prompt_logprobs: int | None = None
    ) -> PromptScores:
        """Append the end of the prompt, at least its last token, and choose the first token after it.

        Also one chunk, and as with `prefill` it may be scored, or still be under way when this returns. The sequence
        takes part in the next `decode` that names it. Of a state that cannot be cut by tokens nothing can be had any
        more for a position inside `token_ids`: whoever wants a snapshot at the last but one position gives the last
        token alone.
        """
        ...

    def decode(self, ids: Sequence[SequenceId]) -> Sequence[DecodeResult]:
        """The next tokens of each named sequence (any subset of the decoding ones), in the order named.

        A sequence's first token was chosen by `start_decode` and waits for no computing of its second. A row that fails
        carries its error; the others are unaffected.
        """
        ...

    def close(self, ids: Sequence[SequenceId]) -> None:
        """Release sequences in any phase. Ids that are not open are ignored. The bytes of a row of a batch may be kept
        until the next `decode` or `ComputeEngine.clear_cache`, where all that left are dropped together."""
        ...


class LoadedModel(Generating, StateAccess, Protocol):
    """One model in memory and the states of its open sequences."""

    @property
    def description(self) -> ModelDescription: ...


LoadSteps: TypeAlias = "Generator[Future[Any] | None, None, LoadedModel]"
"""A load cut into pieces: each `next` does one, of about the length of a step, and the last one returns the model.

A piece that yields a Future has nothing to do until that is done (a worker reads files). One who gives up closes the
generator, which lets go of all that was loaded."""


class ComputeEngine(Protocol):
    """Loads models and ends the compute backend."""

    def load(self, source: ModelSource, options: LoadOptions) -> LoadSteps:
        """Load and probe a model, piece by piece; other models may compute between two of them, and nothing is begun
        before the first. The pieces raise ModelLoadFailed, with nothing held."""
        ...

    def unload(self, model: LoadedModel) -> None:
        """Free a model with all its sequences and return its memory to the system."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by purpose (`active`, `peak`, `cache`, ...), for telemetry. Any thread."""
        ...

    def clear_cache(self) -> None:
        """Give back what was freed and is only kept to be used again, so that what is held is what is used. Takes
        milliseconds; changes no state."""
        ...

    def close(self) -> None:
        """Finish outstanding work and release the thread's backend resources. Last call on the compute thread."""
        ...
