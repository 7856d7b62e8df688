"""The input and output of `plan_step`: values, and the clock that measures the last steps."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from domain.chunking import PLAIN, Chunking
from domain.ids import BlockHash, SequenceId
from domain.memory.shape import ImageSizes
from domain.priority import Priority


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The constants of an engine's steps.

    `max_batch`: most sequences computed at once. `prefill_budget`, `grid` and `max_last_chunk` (the chunk that ends a
    prompt) in tokens. `aging`: every `aging`-th prefill turn is for the prompt that waited longest. `patience`: most
    later sequences that are admitted before a waiting one. `max_held`: most steps for which a turn is held.
    `decode_share`: share of the time for running streams while prompts prefill. `max_preemptions`: a sequence preempted
    so often is spared while there are others.
    """

    max_batch: int
    prefill_budget: int
    grid: int
    max_last_chunk: int = 32
    aging: int = 4
    patience: int = 16
    max_held: int = 4
    decode_share: float = 0.25
    max_preemptions: int = 3


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A live state that a sequence continues from without a copy. `state`: the sequence that left it. `size_bytes`: its
    memory, which is counted already."""

    state: SequenceId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SequenceView:
    """The planner's view of one sequence, of one type for each phase; the engine lists them in order of arrival.

        WaitingView ──► RestoringView ──► PrefillingView ──► DecodingView

    `charge_bytes`: memory at its longest once it is admitted, given back when it is preempted; 0: unknown.
    `num_waited`: how often another sequence was admitted before it though it arrived later, or had a prefill turn,
    since it last made progress.
    """

    id: SequenceId
    _: KW_ONLY
    charge_bytes: int = 0
    priority: Priority = Priority.INTERACTIVE
    num_waited: int = 0
    num_preempted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptView(SequenceView):
    """A sequence before its first token, or the next one after a preemption.

    `num_prompt`: tokens to prefill; the prompt of a preempted sequence includes its output. `is_scored`: logits of
    every prompt token are computed. `unseen`: images that the model's tower has yet to pass over. `whole`: those inside
    which no chunk may end, as [start, end).
    """

    num_prompt: int
    is_scored: bool = False
    unseen: ImageSizes = ImageSizes()
    whole: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingView(PromptView):
    """A sequence that waits for admission. `is_looked_up`: its start is known. `takes_over`: the state it starts from;
    the first of several that is admitted gets it, and it may be evicted before. `follows`: the running sequence that
    computes more of the same prompt. `next_block`: the hash of the first block that it would compute itself, or of
    what is left of its prompt."""

    is_preempted: bool = False
    is_looked_up: bool = True
    takes_over: TakeOver | None = None
    follows: SequenceId | None = None
    next_block: BlockHash | None = None

    @property
    def wanted_bytes(self) -> int:
        """The charge beyond the state that it takes over."""
        return self.charge_bytes if self.takes_over is None else max(0, self.charge_bytes - self.takes_over.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoringView(PromptView):
    """An admitted sequence without a state yet. `takes_over`: the state it starts from. `is_held`: it waits for room to
    fetch into, or for its grammar."""

    takes_over: TakeOver | None = None
    is_held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillingView(PromptView):
    """A sequence whose state covers `num_computed < num_prompt` tokens. `stops`: ascending positions at which prefill
    must pause. `pass_tokens`: what is left are rows of a pooled request, this number of tokens in a chunk; 0: it is a
    prompt. `blocked_at`: no chunk may reach beyond, because an image there is not prepared. `chunking`: the rule of the
    model's chunks."""

    num_computed: int = 0
    stops: tuple[int, ...] = ()
    pass_tokens: int = 0
    blocked_at: int | None = None
    chunking: Chunking = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingView(SequenceView):
    """A sequence whose state covers `num_computed` tokens, output included. `width`: the most tokens of it that a step
    computes: one, and a draft's."""

    num_computed: int
    width: int = 1


@dataclass(frozen=True, slots=True)
class StepBudget:
    """The memory budget of one step; the default bounds nothing.

    `room_bytes`: charges that may be admitted; None: any number. `admits` False: no sequence is admitted.
    `preempt_bytes`: to be given back by preemption. `evicted`: states that cannot be taken over any more, whatever the
    views say. `lasts`: number of further steps for which it stands, while the same sequences decode and none arrives.
    `is_held`: the next prefill turn waits until records are written.
    """

    room_bytes: int | None = None
    admits: bool = True
    preempt_bytes: int = 0
    evicted: frozenset[SequenceId] = frozenset()
    lasts: int = 0
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class StepPace:
    """The durations of the last steps; the default: there were none. `num_turns`: prefill turns so far. `turn_s`: of
    the last one. Since then: `num_decodes` decode steps of `decode_s` together; `step_s` of an ordinary one; `num_held`
    steps for which the next turn was held."""

    num_turns: int = 0
    turn_s: float = 0.0
    decode_s: float = 0.0
    num_decodes: int = 0
    step_s: float = 0.0
    num_held: int = 0


class StepClock:
    """The durations of the last steps, measured by the engine loop; `pace` is what the planner reads. A backend may
    return before a turn is computed: the time that the next decode step takes beyond an ordinary one is the turn's."""

    def __init__(self) -> None:
        self._num_turns = self._num_decodes = self._num_held = 0
        self._turn_ns = self._late_ns = self._decode_ns = self._step_ns = 0

    @property
    def pace(self) -> StepPace:
        turn_s, decode_s, step_s = (self._turn_ns + self._late_ns) / 1e9, self._decode_ns / 1e9, self._step_ns / 1e9
        return StepPace(self._num_turns, turn_s, decode_s, self._num_decodes, step_s, self._num_held)

    def decoded(self, duration_ns: int) -> None:
        """Counts a decode step."""
        if self._num_decodes == 0 and self._num_turns:
            own_ns = self._step_ns = min(duration_ns, self._step_ns)
            self._late_ns = duration_ns - own_ns
        else:
            own_ns = self._step_ns = duration_ns
        self._decode_ns += own_ns
        self._num_decodes += 1

    def prefilled(self, duration_ns: int) -> None:
        """Counts a prefill turn."""
        self._turn_ns, self._decode_ns = duration_ns, 0
        self._num_turns += 1
        self._num_decodes = self._num_held = 0

    def held(self) -> None:
        """Counts a step for which the next turn was held."""
        self._num_held += 1


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """The positions [start, end) of one chunk; never empty."""

    id: SequenceId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The plan of one step. `preempt`: after their last `decode`. `is_held`: a turn waits for a shorter prompt.
    `num_waited`: its changes, by sequence. `admitted_bytes`: room that the admitted sequences take."""

    admit: tuple[SequenceId, ...] = ()
    prefill: tuple[PrefillChunk, ...] = ()
    decode: tuple[SequenceId, ...] = ()
    preempt: tuple[SequenceId, ...] = ()
    num_waited: Mapping[SequenceId, int] = field(default_factory=dict[SequenceId, int])
    admitted_bytes: int = 0
    is_held: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.admit or self.prefill or self.decode or self.preempt)

    @property
    def only_decodes(self) -> bool:
        """The step does nothing else, and no sequence waits."""
        return not (self.admit or self.prefill or self.preempt or self.num_waited or self.is_held)


UNBOUNDED = StepBudget()
UNPACED = StepPace()
