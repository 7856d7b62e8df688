"""The compute port: loaded models and their capabilities, and readings of the memory they compute in.

    capability     who needs it        Protocol
    generating     the engine          Generating
    seeing         the engine          Seeing
    state access   the prefix cache    StateAccess (application.ports.state_access)

A LoadedModel has all of them, and pools; one without an image processor does not see.

Threading: every method is called from one thread only, the compute thread, which also created the engine, except where
a docstring says otherwise. Calls block on computation only. Errors: ComputeFailed for one sequence's failure (the
sequence is then closed, others go on); ModelLoadFailed from `load`; DeviceFailed, which ends the engine; anything else
is a defect.

A sequence's *position* is the number of tokens its state covers. Prompt tokens move it by the chunk; a decode step
moves it by the tokens it feeds. The end of the prompt gives the first token, so the first decode step feeds nothing
and each later one feeds what the last one gave:

    call         prefill     start_decode        decode     decode     decode
    computes     a chunk     the last chunk                 token 1    token 2
    gives                                        token 1    token 2    token 3

An adapter may run ahead by one token: the one it just sampled is already being fed while the caller processes it. So
after `n` tokens the position is `n - 1` or `n` behind the prompt; `position` is exact at any time.

A step may give several tokens: those of a Draft that are what plain decoding would have chosen. One forward pass of
`1 + K` tokens verifies a draft of `K`; a position is accepted while the token that is chosen there, with that
position's own noise, penalties and grammar, equals the draft. What was fed beyond the last accepted token is undone.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from application.ports.state_access import StateAccess
from application.ports.token_constraint import TokenConstraint
from application.ports.vision import ImageFeatures, PreparedImage
from domain.errors import DomainError
from domain.id_row import IdRow
from domain.ids import SequenceId
from domain.memory.ledger import MemoryReading
from domain.models.capability import Pooling
from domain.models.load_progress import LoadPhase
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.prefix.prompt_content import MediaSpan
from domain.request.sampling import SamplingParams
from domain.request.stream import TokenLogprob
from domain.speculation.drafter import Drafter


class DeviceFailed(BaseException):
    """The device failed, and nothing that was computed since the last verified read can be trusted.

    It may surface in the call of any sequence, whichever work failed, and only once: a backend keeps it until the first
    check, after which the work that failed goes on with what its buffers hold. So no handler of one request's failure
    may contain it, and it is no Exception: it ends the engine.
    """

    def __init__(self, report: str) -> None:
        """`report`: the device's own words."""
        super().__init__(f"the device failed: {report}")


@dataclass(frozen=True, slots=True)
class DecodeStart:
    """The parameters by which a sequence's tokens are chosen.

    `prompt_ids`: the whole prompt, for the repetition penalty. `min_tokens`: the `eos_token_ids`, all tokens that end
    this answer, are suppressed before this number of tokens is out. `seed`: always set (drawn if the client gave none):
    the noise of token i is a function of (seed, i) alone. `constraint`: allows the tokens of an answer with a grammar;
    used by this sequence only. Where it allows only tokens that end the answer, `min_tokens` suppresses none.
    `output_ids`: the output of a preempted sequence so far: it was prefilled behind the prompt, accepted by
    `constraint`, and counts as if it had been decoded here.
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
class Draft:
    """The tokens that may follow those given so far, proposed for one sequence and one step.

    `token_ids`: the first of them are compared with tokens that the adapter has chosen already and did not give yet;
    if one differs, the draft is void. Ids outside the vocabulary and tokens that end the answer cut it short.
    `drafter`: proposed them. `depth`: most tokens that the model's own drafter proposes if `token_ids` is empty or
    void, here or for a sequence that shares the forward pass; 0 for none.
    """

    token_ids: tuple[int, ...] = ()
    depth: int = 0
    drafter: Drafter = Drafter.NGRAM


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """One sequence's outcome of one decode step: one token or several, or the error that ended it.

    `logprobs`: one for each token where `num_logprobs` asked for them, else empty. `num_proposed`: draft tokens that
    were verified, of which `num_accepted` are among `token_ids`. `drafter`: proposed them; None for a plain step.
    """

    id: SequenceId
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    error: DomainError | None = None
    num_proposed: int = 0
    drafter: Drafter | None = None

    @property
    def num_accepted(self) -> int:
        return max(0, len(self.token_ids) - 1)


NO_DRAFTS: Mapping[SequenceId, Draft] = MappingProxyType({})


Images: TypeAlias = Mapping[bytes, ImageFeatures]
"""The features of images by the digest of their spans."""

NO_IMAGES: Images = MappingProxyType({})


PromptScores: TypeAlias = Sequence[TokenLogprob | None]
"""The log probability of each token of one call's `token_ids`, in order; empty where it was not requested.

By the model's own distribution, before any sampling setting, with `rank`. None for a token whose predecessor's output
is not known: the first of a prompt, the first after a restore, the first after a chunk that was not scored.
"""


class Generating(Protocol):
    """Sequences from their prompt's first token to their last."""

    def open(self, id: SequenceId) -> None:
        """Opens a sequence with an empty state at position 0. The id must not be open."""
        ...

    def prefill(
        self,
        id: SequenceId,
        token_ids: Sequence[int],
        *,
        num_prompt_logprobs: int | None = None,
        images: Images = NO_IMAGES,
    ) -> PromptScores:
        """Appends at least one token to the state and computes it, as one chunk.

        `images`: the features of every image that was placed where the chunk is. The chunk may begin or end inside one,
        but for `image_is_whole` models it does not end inside.

        `num_prompt_logprobs`: scores these tokens, each with this number of the likeliest alternatives; None
        scores nothing. The state is the same either way. Scoring waits for the chunk and takes the memory of all its
        logits, in the model's dtype. Without scoring, the chunk may still be computing when this returns; a later read
        waits for it.
        """
        ...

    def start_decode(
        self,
        id: SequenceId,
        token_ids: Sequence[int],
        start: DecodeStart,
        *,
        num_prompt_logprobs: int | None = None,
        images: Images = NO_IMAGES,
    ) -> PromptScores:
        """Appends the end of the prompt, at least its last token, and chooses the first token after it. `images` as in
        `prefill`.

        This is one chunk as well: it may be scored, or still be computing when this returns. The sequence takes part in
        the next `decode` that names it. A state that cannot be cut by tokens can no longer be captured at a position
        inside `token_ids`: for a snapshot before the last token, the caller passes that token alone.
        """
        ...

    def decode(
        self, ids: Sequence[SequenceId], drafts: Mapping[SequenceId, Draft] = NO_DRAFTS
    ) -> Sequence[DecodeResult]:
        """Returns the next tokens of each named sequence (any subset of the decoding ones), in the order named.

        A sequence's first token was chosen by `start_decode` and does not wait for its second. A row that fails carries
        its error; the others are unaffected. `drafts`: of some of the sequences; they change how many tokens a step
        gives, never which. Sequences that share a forward pass share the width of the shortest draft among them and the
        acceptance of the worst: a draft is left out where a row beside it has none.
        """
        ...

    def close(self, ids: Sequence[SequenceId]) -> None:
        """Releases sequences in any phase. Ids that are not open are ignored. The rows of a batch may be kept until the
        next `decode` or `ComputeEngine.clear_cache`, which drops all closed rows together."""
        ...


class Seeing(Protocol):
    """Images in prompts. An image's features are made once; the caller keeps them as long as it wants."""

    def set_media(self, id: SequenceId, media: Sequence[MediaSpan]) -> None:
        """Places all images of its prompt in an open, empty sequence. Positions in the sequence derive from them, so
        they stay through `restore` and `take_over`, whether or not their tokens are restored."""
        ...

    def encode_image(self, image: PreparedImage) -> ImageFeatures:
        """Runs the tower on one image; takes the memory of `MemoryShape.image`. Concerns no sequence: raises
        ComputeFailed, also for a model that does not see."""
        ...


class LoadedModel(Generating, Seeing, StateAccess, Protocol):
    """One model in memory and the states of its open sequences."""

    @property
    def description(self) -> ModelDescription: ...

    def pool(self, id: SequenceId, rows: Sequence[Sequence[int]], pooling: Pooling) -> Sequence[bytes]:
        """Computes each row, at least one token, behind the state of `id`, which must not decode yet and stays as it
        is, all in one pass of `len(rows)` times the longest row; waits for it. Returns the numbers of each, as
        little-endian float32; they do not depend on the rows beside it but for rounding. A mean is that of the row
        alone. To a model without layers of state (an encoder) each row is a whole text. Raises ComputeFailed, and the
        sequence is then closed."""
        ...


LoadSteps: TypeAlias = "Generator[Future[Any] | None, None, LoadedModel]"
"""A load in pieces: each `next` runs one, of about the length of a step, and the last one returns the model.

A piece that yields a Future cannot continue until that is done (a worker reads files). Closing the generator abandons
the load and releases all that was loaded."""

LoadReport: TypeAlias = Callable[[LoadPhase, int, int], object]
"""Takes the phase of a load, what is done of it and its total, as in LoadProgress; the first report of a phase says
that nothing is done. Any thread."""


def unreported(_phase: LoadPhase, _done: int, _total: int) -> None:
    """A LoadReport that does nothing."""


class ComputeEngine(Protocol):
    """The compute backend: loads and unloads models."""

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        """Loads and probes a model in pieces; other models may compute between two of them, and nothing begins before
        the first. The pieces raise ModelLoadFailed, with nothing held."""
        ...

    def unload(self, model: LoadedModel) -> None:
        """Frees a model with all its sequences and returns its memory to the system."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Returns bytes by purpose (`active`, `peak`, `cache`, ...), for telemetry. Any thread."""
        ...

    def clear_cache(self) -> None:
        """Gives back freed buffers that are kept for reuse, so that the held memory is the used memory. Takes
        milliseconds; changes no state."""
        ...

    def finish(self) -> None:
        """Waits for all queued work, and verifies it: raises DeviceFailed."""
        ...

    def close(self) -> None:
        """Finishes outstanding work and releases the thread's backend resources. Last call on the compute thread."""
        ...


class MemoryProbe(Protocol):
    """Readings of the memory that computing happens in: the host's, or an accelerator's.

    Any thread, without a stream, well under a millisecond: it is read before every planned step. Raises nothing: a
    value that cannot be read is None, never a guess, a peak or an old value; 0 means nothing. `total_bytes` is the most
    that this process may have (a container's limit, a device's recommended working set). `held_bytes` includes
    `cached_bytes`: a decision about use clears the backend's cache first, or reads `used_bytes`.
    """

    def read(self) -> MemoryReading: ...
