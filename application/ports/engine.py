"""The engine port: the text side and the token side exchange immutable values.

    text side (event loop)                      token side (a thread of this process, or a process of its own)
    prompts to tokens, tokens to text           scheduling, prefix cache, store, the model

        submit, cancel                ──►
        load, unload, cache.*         ◄─►
        receive                       ◄──       StepBatch, one a step; an ImageWanted in it is answered by
        provide_image                 ──►

Values hold no callables and no live objects, no text of a prompt or an answer and no image files; msgspec can encode
each of them, rows of ids by their bytes (`IdRow`).

The items of each choice arrive in this order: Admitted, (PromptLogprobs | PrefillProgress | Pooled)*, Tokens*, Ended;
ImageWanted at any place before the last one.
Admitted may be missing when the choice never left the queue. Exactly one Ended arrives for each open choice of each
submission that `submit` accepted, however the engine ends.

Threading: the event loop that called `start`, except `status`, which any thread may call. Errors: DomainError.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from application.events import Event
from application.ports.cache_stats import CacheStats, Cleared
from application.ports.model_repository import ModelPreview
from application.ports.vision import PreparedImage
from domain import errors
from domain.errors import DomainError, ServerUnavailable
from domain.health.engine_health import Activity, Heartbeat
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from domain.models.capability import Pooling
from domain.models.load_progress import LoadProgress
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.prefix.explanation import Explanation
from domain.prefix.prompt_content import EncodedPrompt
from domain.priority import Priority
from domain.request.grammar import Grammar
from domain.request.reasoning_budget import ReasoningBudget
from domain.request.request import FinishReason, Usage
from domain.request.sampling import SamplingParams
from domain.request.stream import Admitted, Pooled, PrefillProgress, PromptLogprobs, TokenLogprob
from domain.scheduling.queue_waits import WaitReason
from domain.speculation.drafter import Drafter


@dataclass(frozen=True, slots=True)
class ResumedChoice:
    """A choice whose engine was lost, as far as it was reported: another engine continues after that. The noise of
    token i is a function of (seed, i), so that the output is all it needs.

    `output_ids`: reported output tokens. `explanation`: of its admission, None if that was not reported.
    `num_prompt_done`: prompt tokens that were reported as computed. `has_left_queue`: it was admitted before."""

    output_ids: tuple[int, ...] = ()
    explanation: Explanation | None = None
    num_prompt_done: int = 0
    has_left_queue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request whose prompt is encoded and checked; the text side keeps the rest of it.

    `seed` is always set; choice i draws with `choice_seed(seed, i)`. `max_new_tokens` fits the context; 0 ends a choice
    with its prompt. `eos_token_ids`: all tokens that end an answer; with `ignore_eos` none does.
    `stop_token_ids`: more tokens that end it, whatever `ignore_eos` says; both are held back by `min_tokens`.
    `cache_salt`, `persist`, `grammar` and `num_prompt_logprobs` as in GenerationRequest; the log probabilities of the
    prompt come with the first choice, a chunk at a time, before any choice's Tokens. `reasoning_budget`: None for no
    bound.
    `speculates`: drafts may be verified; `predicted_ids`: the text that the client predicts, as tokens, to draft from.
    `pooling`: vectors or scores are computed instead of an answer (`max_new_tokens` is 0 and there is one choice): one
    for each of `rows`, the longest first, which follow their common beginning each by itself. The prompt is that
    beginning, may be empty, and the first token of a row, which is not computed with it: what another request reuses.
    `resumed`: empty, or one for each choice that another engine computed, None for a choice that has ended; nothing is
    reported twice.
    """

    id: RequestId
    model: ModelId
    prompt: EncodedPrompt
    sampling: SamplingParams
    seed: int
    max_new_tokens: int
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    cache_salt: str = ""
    persist: bool = True
    num_choices: int = 1
    grammar: Grammar | None = None
    reasoning_budget: ReasoningBudget | None = None
    num_prompt_logprobs: int | None = None
    priority: Priority = Priority.INTERACTIVE
    speculates: bool = True
    predicted_ids: IdRow = field(default_factory=IdRow)
    pooling: Pooling | None = None
    rows: tuple[IdRow, ...] = ()
    resumed: tuple[ResumedChoice | None, ...] = ()

    @property
    def num_prompt_tokens(self) -> int:
        """The tokens that are computed before an answer."""
        return len(self.prompt.token_ids) - bool(self.rows) + sum(map(len, self.rows))

    @property
    def open_choices(self) -> tuple[int, ...]:
        """The choices that are to be computed."""
        if not self.resumed:
            return tuple(range(self.num_choices))
        return tuple(choice for choice, resumed in enumerate(self.resumed) if resumed is not None)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens sampled in one step. `has_eos`: the last of them ends the answer; it is counted, but is not part of
    the text. `drafter`: proposed `num_proposed` tokens, of which those after the first token were accepted."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    has_eos: bool = False
    drafter: Drafter | None = None
    num_proposed: int = 0


@dataclass(frozen=True, slots=True)
class EngineError:
    """A DomainError as a value. `kind`: the name of its class. `numbers`: its further attributes, such as sizes."""

    kind: str
    message: str
    param: str | None = None
    numbers: Mapping[str, int | float] = field(default_factory=dict[str, int | float])

    @classmethod
    def of(cls, error: DomainError) -> "EngineError":
        numbers = {name: value for name, value in vars(error).items() if isinstance(value, int | float)}
        return cls(type(error).__name__, error.message, error.param, numbers)

    @property
    def code(self) -> str:
        return self.to_error().code

    def to_error(self) -> DomainError:
        """Returns an error of that class; ServerUnavailable where there is no such class."""
        found: object = getattr(errors, self.kind, None)
        kind = found if isinstance(found, type) and issubclass(found, DomainError) else ServerUnavailable
        made = kind(self.message)
        made.param = self.param
        for name, value in self.numbers.items():
            setattr(made, name, value)
        return made


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a choice: its reason, or its error (`reason` is None then). It is the choice's last item."""

    usage: Usage
    reason: FinishReason | None
    error: EngineError | None = None


@dataclass(frozen=True, slots=True)
class ImageWanted:
    """The engine's need for the arrays of an image in the prompt, by the digest of its span. The choice waits for
    `provide_image`; others with the same model, salt and image may wait with it. It is repeated when the choice needs
    the image again, or the choice that waited has ended."""

    digest: bytes


EngineItem: TypeAlias = Admitted | PrefillProgress | PromptLogprobs | ImageWanted | Tokens | Pooled | Ended


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The output since the last batch. `items`: with the submission's id and the choice's number, in order.
    `num_left_queue`: number of choices that left the queue, admitted or ended. `events`: telemetry, also of workers.
    `computing`: the choices, by their own ids, that are computed from now on, reported before that begins; None:
    unchanged."""

    at_ns: int
    items: tuple[tuple[RequestId, int, EngineItem], ...] = ()
    events: tuple[Event, ...] = ()
    num_left_queue: int = 0
    computing: tuple[RequestId, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The state of the engine. `last_progress_ns`: when its last step, load or idle wake-up ended. `last_step_ns`,
    `num_calls` and `activity`: as in `domain/health`. Other counts are of choices. `memory`: bytes by purpose, as the
    backend reported them after the last load or unload. `fault`: why it ended. `last_loss`: why the engine before it
    was lost; empty for none. `limits`: the memory it may hold; None: unbounded. `ledger`: the memory it holds, at the
    end of its last step; None: unknown. `pressure`: a level of `domain/memory/pressure` by its name in lower case;
    empty where memory is unbounded. `waiting_for`: number of waiting choices by WaitReason values. `computing`:
    description of the device; empty while unknown. `loading`: the load under way; None for none. `stuck_after_s`:
    longer than a step, or a piece of a load, legitimately takes on its device; None while unknown. `prefill_chunk`:
    most tokens that one step prefills.
    """

    is_alive: bool
    is_busy: bool
    last_progress_ns: int
    last_step_ns: int
    num_waiting: int
    num_running: int
    num_calls: int = 0
    activity: Activity | None = None
    memory: Mapping[str, int] = field(default_factory=dict[str, int])
    fault: str = ""
    last_loss: str = ""
    limits: MemoryLimits | None = None
    ledger: MemoryLedger | None = None
    pressure: str = ""
    waiting_for: Mapping[str, int] = field(default_factory=dict[str, int])
    computing: str = ""
    loading: LoadProgress | None = None
    stuck_after_s: float | None = None
    prefill_chunk: int = 0

    @property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(
            last_step_ns=self.last_step_ns,
            last_progress_ns=self.last_progress_ns,
            num_waiting=self.num_waiting,
            num_running=self.num_running,
            num_blocked=self.waiting_for.get(WaitReason.MEMORY.value, 0),
            num_calls=self.num_calls,
            activity=self.activity,
            is_alive=self.is_alive,
            fault=self.fault,
        )


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A loaded model. `reuse_note`: the reason why its prompts are never reused; empty when they are."""

    description: ModelDescription
    reuse_note: str = ""


class EngineCache(Protocol):
    """The engine's prefix cache. StoreUnresponsive: the store did not answer in time."""

    async def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> Explanation:
        """Returns what a request with this prompt would reuse and why no more, also while the store does not answer.
        Computes nothing. Raises ModelNotFound for a model that is not loaded."""
        ...

    async def num_stored(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> int | None:
        """Returns how many of its tokens could be reused after a restart; None when nothing is persisted. Raises
        ModelNotFound and StoreUnresponsive."""
        ...

    async def settle(self, timeout_s: float) -> bool:
        """Waits until everything captured so far is stored, as durably as the setting allows, or dropped. Returns False
        if it takes longer. Raises StoreUnresponsive."""
        ...

    async def stats(self) -> CacheStats:
        """Returns figures of each tier. Tiers are read in turn, so a record that moves between them may count twice."""
        ...

    async def clear(self, model: str | None, salt: str | None) -> Cleared:
        """Removes all that is kept of one model and one `cache_salt`, or of any (None). Raises StoreUnresponsive.

        A request that runs during the call ends normally, and none of its state is kept."""
        ...

    async def clear_hot(self) -> Cleared:
        """Evicts all records of the hot tier that no request uses at the moment. Live states and the store keep theirs,
        so that nothing is lost that is stored."""
        ...


class Engine(Protocol):
    """An engine, see the module docstring. A stopped engine is not started again."""

    @property
    def cache(self) -> EngineCache: ...

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        """Starts the engine. `receive` gets every batch, in order, on this event loop; it must not block or raise."""
        ...

    async def stop(self, timeout_s: float) -> bool:
        """Ends every open choice with ServerUnavailable, writes what waits for the store and delivers the last events.
        Returns False if the engine did not end in time. Idempotent."""
        ...

    def status(self) -> EngineStatus: ...

    def submit(self, submission: Submission) -> None:
        """Queues all choices of a request; where prompts are reused its prompt is computed once. Raises
        ServerUnavailable when the engine has ended."""
        ...

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        """Ends a choice, or all of them (None), within one step. Unknown or ended ids are ignored.

        `reason` STOP: the text side ended the choice after `num_tokens` tokens; later ones are not counted."""
        ...

    def provide_image(self, model: ModelId, salt: str, digest: bytes, image: PreparedImage | EngineError) -> None:
        """Answers an ImageWanted of a choice with this model and `cache_salt`. An image that no choice waits for is
        ignored; an error ends the choices that reach the image."""
        ...

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        """Loads a model between the steps of running requests. A loaded model stays. Cancellation does not stop a load
        that has begun. Raises ModelLoadFailed, and ServerUnavailable when the engine has ended."""
        ...

    async def unload(self, id: ModelId) -> None:
        """Unloads a model; its open choices end with ServerUnavailable. Raises that when the engine has ended."""
        ...


class EngineInstance(Engine, Protocol):
    """An Engine that may be lost: it then ends by itself, and its open choices get no item any more.

    `is_outdated`: it was lost because the code on disk is no longer the code of this process, which can start no other
    engine."""

    is_outdated: bool

    async def begun(self) -> None:
        """Returns when the engine has been made, or has ended."""
        ...

    async def check(self, source: ModelSource, options: LoadOptions) -> ModelPreview:
        """Looks at a model without loading it, as a ModelCheck."""
        ...

    def abandon(self) -> None:
        """Ends a stuck engine after it wrote a report of its threads. It is lost then."""
        ...


class MakeInstance(Protocol):
    def __call__(self, lost: Callable[[str], None]) -> EngineInstance:
        """Makes an engine. `lost`: called once on the event loop with the reason when it ended by itself, before the
        calls that wait for it end. It computes nothing any more then."""
        ...
