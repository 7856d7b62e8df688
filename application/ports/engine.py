"""The engine port: where the text side and the token side meet, in immutable values.

    text side (event loop)                      token side (a thread of this process, or a process of its own)
    prompts to tokens, tokens to text           scheduling, prefix cache, store, the model

        submit, cancel                ──►
        load, unload, cache.*         ◄─►
        receive                       ◄──       StepBatch, one a step

Values hold no callables and no live objects, and no text of a prompt or an answer; msgspec can encode each of them,
rows of ids by their bytes (`IdRow`).

Of each choice come, in this order: Admitted, (PromptLogprobs | PrefillProgress)*, Tokens*, Ended. Admitted may be
missing when it never left the queue. Exactly one Ended comes for each open choice of each submission that `submit`
took, however the engine ends.

Threading: the event loop that called `start`, but for `status`, which any thread may call. Errors: DomainError.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from application.events import Event
from application.ports.cache_stats import CacheStats, Cleared
from application.ports.model_repository import ModelPreview
from domain import errors
from domain.errors import DomainError
from domain.health.engine_health import Activity, Heartbeat
from domain.ids import ModelId, RequestId
from domain.memory.ledger import MemoryLimits, MemoryUse
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.prefix.explanation import Explanation
from domain.prefix.prompt_content import EncodedPrompt
from domain.priority import Priority
from domain.request.grammar import Grammar
from domain.request.reasoning_budget import ReasoningBudget
from domain.request.request import FinishReason, Usage
from domain.request.sampling import SamplingParams
from domain.request.stream import Admitted, PrefillProgress, PromptLogprobs, TokenLogprob
from domain.scheduling.queue_waits import WaitReason


@dataclass(frozen=True, slots=True)
class ResumedChoice:
    """What was reported of a choice before the engine that computed it was lost: another one goes on behind it. The
    noise of token i is a function of (seed, i), so that the output is all it needs.

    `output_ids`: tokens put out. `explanation`: of its admission, None where that was not reported. `num_prompt_done`:
    prompt tokens that were reported as computed. `has_left_queue`: it was counted among those that did."""

    output_ids: tuple[int, ...] = ()
    explanation: Explanation | None = None
    num_prompt_done: int = 0
    has_left_queue: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request whose prompt is encoded and checked; the text side keeps the rest of it.

    `seed` is always set; choice i draws with `choice_seed(seed, i)`. `max_new_tokens` fits the context; 0 ends a choice
    with its prompt. `eos_token_ids`: all that end an answer; with `ignore_eos` none does. `cache_salt`, `persist`,
    `grammar` and `num_prompt_logprobs` as in GenerationRequest; the first choice has them, a chunk of its prompt at a
    time, all before any choice's Tokens. `reasoning_budget`: None for no bound. `priority`: who waits for whom.
    `resumed`: empty, or one a choice that another engine had, None for a choice that has ended: it goes on behind that,
    and nothing is reported twice.
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
    cache_salt: str = ""
    persist: bool = True
    num_choices: int = 1
    grammar: Grammar | None = None
    reasoning_budget: ReasoningBudget | None = None
    num_prompt_logprobs: int | None = None
    priority: Priority = Priority.INTERACTIVE
    resumed: tuple[ResumedChoice | None, ...] = ()

    @property
    def open_choices(self) -> tuple[int, ...]:
        """Those that are to be computed."""
        if not self.resumed:
            return tuple(range(self.num_choices))
        return tuple(choice for choice, resumed in enumerate(self.resumed) if resumed is not None)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled tokens. `has_eos`: the last of them ends the answer: it is counted, and never shown as text."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    has_eos: bool = False


@dataclass(frozen=True, slots=True)
class EngineError:
    """A DomainError as a value."""

    code: str
    message: str
    param: str | None = None

    @classmethod
    def of(cls, error: DomainError) -> "EngineError":
        return cls(error.code, error.message, error.param)

    def to_error(self) -> DomainError:
        """An error of the class that has this code."""
        made = _CLASSES.get(self.code, DomainError)(self.message)
        made.param = self.param
        return made


_CLASSES = {
    error.code: error
    for error in (
        errors.InvalidRequest,
        errors.ContextOverflow,
        errors.MemoryBusy,
        errors.ModelNotFound,
        errors.ModelExceedsMemory,
        errors.ModelLoadFailed,
        errors.ServerUnavailable,
        errors.ComputeFailed,
        errors.EngineLost,
        errors.IllegalTransition,
    )
}


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine is done with a choice: why, or by which error (`reason` is None then). Nothing of it follows."""

    usage: Usage
    reason: FinishReason | None
    error: EngineError | None = None


EngineItem: TypeAlias = Admitted | PrefillProgress | PromptLogprobs | Tokens | Ended


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What came out since the last one. `items`: with the submission's id and the choice's number, in order.
    `num_left_queue`: how many choices left the queue, admitted or ended. `events`: telemetry, of workers too.
    `computing`: the choices, by their own ids, that are computed from now on, reported before that begins; None: the
    same as before."""

    at_ns: int
    items: tuple[tuple[RequestId, int, EngineItem], ...] = ()
    events: tuple[Event, ...] = ()
    num_left_queue: int = 0
    computing: tuple[RequestId, ...] | None = None


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """A model that is being loaded. `done_bytes`: of its weights, in memory; 0 while files are read for the first time,
    to know them again. `total_bytes`: about what there will be."""

    id: ModelId
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """The engine's heartbeat. `last_progress_ns`: when its last step, load or idle wake-up ended. `last_step_ns`,
    `num_calls` and `activity`: as in `domain/engine_health`. Other counts are of choices. `memory`: bytes by purpose,
    as the backend told them after the last load or unload. `fault`: why it ended.
    `limits`: what it may hold; None: nothing bounds it. `ledger`: what it holds, at the end of its last step; None:
    it keeps none. `pressure`: a level of `domain/memory/pressure` by its name in small letters; empty where nobody
    looks. `waiting_for`: how many of those that wait do so for what, by WaitReason values. `computing`: what computes,
    for people; empty while that is not known. `loading`: the load under way, None for none. `stuck_after_s`: longer
    than a step, or a piece of a load, legitimately takes where it computes; None while that is not known.
    `prefill_chunk`: tokens that one step prefills at most.
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
    limits: MemoryLimits | None = None
    ledger: MemoryUse | None = None
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
    """A loaded model. `reuse_note`: why its prompts are never reused; empty when they are."""

    description: ModelDescription
    reuse_note: str = ""


class EngineCache(Protocol):
    """What may be asked of the engine's prefix cache. StoreUnresponsive: the store did not answer in time."""

    async def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> Explanation:
        """What a request with this prompt would reuse and why no more, also while the store does not answer. Computes
        nothing. Raises ModelNotFound for a model that is not loaded."""
        ...

    async def num_stored(self, model: ModelId, prompt_ids: Sequence[int], salt: str) -> int | None:
        """How many of these tokens a restart would leave; None when nothing is persisted. Raises ModelNotFound and
        StoreUnresponsive."""
        ...

    async def settle(self, timeout_s: float) -> bool:
        """Wait until all that was captured so far is stored, as durably as the setting allows, or dropped. False if it
        takes longer. Raises StoreUnresponsive."""
        ...

    async def stats(self) -> CacheStats:
        """Tiers are read one after the other, so that what moves between them may be seen twice."""
        ...

    async def clear(self, model: str | None, salt: str | None) -> Cleared:
        """Remove for good what is kept of one model and one `cache_salt`, or of any (None). Raises StoreUnresponsive.

        A request that runs meanwhile ends as it would have, and leaves nothing behind."""
        ...


class Engine(Protocol):
    """See the module docstring. One life: what was stopped is not started again."""

    @property
    def cache(self) -> EngineCache: ...

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        """Begin to work. `receive` gets every batch, in order, on this event loop; it must not block or raise."""
        ...

    async def stop(self, timeout_s: float) -> bool:
        """End everything: what is open ends with ServerUnavailable, what waits for the store is written, and the last
        events are handed over. False if the engine did not end in time. Idempotent."""
        ...

    def status(self) -> EngineStatus: ...

    def submit(self, submission: Submission) -> None:
        """Begin all choices of a request: its prompt is looked up, restored and computed once. Raises
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
        """End a choice, or all of them (None), within one step, whatever it is doing. Unknown or ended ids are ignored.

        `reason` STOP: the text side found a stop string after `num_tokens` tokens; later ones are not counted."""
        ...

    async def load(self, source: ModelSource, options: LoadOptions) -> EngineModel:
        """Load a model, between the steps of running requests. One that is loaded already stays. Cancelled, a load
        that has begun goes on. Raises ModelLoadFailed, and ServerUnavailable when the engine has ended."""
        ...

    async def unload(self, id: ModelId) -> None:
        """Unload a model; choices it still serves end with ServerUnavailable. Raises it when the engine has ended."""
        ...


class MortalEngine(Engine, Protocol):
    """An Engine of one life, which may end unasked; choices that are open then end without a word.

    `is_outdated`: it was lost because the code on disk is no longer the code of this process, which can start no other
    engine."""

    is_outdated: bool

    async def begun(self) -> None:
        """Returns once it is made, or has ended."""
        ...

    async def check(self, source: ModelSource, options: LoadOptions) -> ModelPreview:
        """As a ModelCheck."""
        ...

    def abandon(self) -> None:
        """End it as it is, after it wrote where it hangs. It is lost then."""
        ...


class MakeMortal(Protocol):
    def __call__(self, lost: Callable[[str], None]) -> MortalEngine:
        """`lost`: called once on the event loop when it has ended unasked, with the reason, before questions to it end.
        Nothing of it computes any more then."""
        ...


__all__ = (
    "Ended",
    "Engine",
    "EngineCache",
    "EngineError",
    "EngineItem",
    "EngineModel",
    "EngineStatus",
    "LoadProgress",
    "MakeMortal",
    "MortalEngine",
    "ResumedChoice",
    "StepBatch",
    "Submission",
    "Tokens",
)
