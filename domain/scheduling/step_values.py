"""What the planner of steps is told, and what it answers: values only. See `scheduling`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.ids import BlockHash, SequenceId
from domain.priority import Priority
from domain.scheduling.sequence import Phase


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What holds for every step of an engine.

    `max_batch`: sequences computed at once. `prefill_budget`, `grid` and `max_last_chunk` (of the chunk that ends a
    prompt) in tokens. `aging`: of so many prefill turns one is for the prompt that has waited longest. `patience`: so
    many later ones may be admitted before a waiting sequence. `max_held`: for so many steps a turn waits for shorter
    prompts to be restored. `decode_share`: of the time, for running streams while
    prompts prefill. `max_preemptions`: who was preempted so often is spared while there are others.
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

    @property
    def max_turns_waited(self) -> int:
        """No prompt that is being prefilled waits for more turns than this between two of its own."""
        return self.aging * self.max_batch


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A state that a sequence goes on from without a copy. `state`: whose it was; `size_bytes`: what it holds, which is
    counted already."""

    state: SequenceId
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SequenceView:
    """The planner's view of one sequence; the engine lists them in order of arrival.

    `stops`: ascending positions at which prefill must pause. While prefilling, `num_computed < num_prompt`; of a
    sequence that was preempted the prompt includes what it has put out. `charge_bytes`: what it holds at its longest
    once it is admitted, and gives back when it is preempted; 0: unknown. `num_waited`: how often others went
    first since it last got on: were admitted though they came later, or had a prefill turn. `is_scored`: logits of
    every token of its prompt are computed. `is_looked_up`: of one that waits, whether it is known what it starts from.
    `takes_over`: of one that waits or is restored, what it goes on from; of several that wait, whoever is admitted
    first has it, and it may be let go of before; once admitted, it is the sequence's own. `follows`: of one that waits,
    the running sequence that computes more of the same prompt; `next_block`: the hash of the first block that it would
    compute itself. `is_held`: of one that is restored, that it waits for what the engine does not do: room to fetch
    into, or its grammar.
    """

    id: SequenceId
    phase: Phase
    num_computed: int
    num_prompt: int
    stops: tuple[int, ...] = ()
    charge_bytes: int = 0
    priority: Priority = Priority.INTERACTIVE
    num_waited: int = 0
    num_preempted: int = 0
    is_scored: bool = False
    is_looked_up: bool = True
    takes_over: TakeOver | None = None
    follows: SequenceId | None = None
    next_block: BlockHash | None = None
    is_held: bool = False

    @property
    def wanted_bytes(self) -> int:
        """What it is charged beyond what is held of it."""
        return self.charge_bytes if self.takes_over is None else max(0, self.charge_bytes - self.takes_over.size_bytes)


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What memory leaves for one step; the default bounds nothing.

    `room_bytes`: what may be admitted beyond what is active already; None: any number. `admits` False: nobody is
    admitted. `preempt_bytes`: so much must be given back by
    preempting; 0: nobody is. `let_go`: whose states nobody takes over any more, whatever the views say. `lasts`: for so
    many steps more it would be no other, as long as the same sequences decode and nobody else comes.
    """

    room_bytes: int | None = None
    admits: bool = True
    preempt_bytes: int = 0
    let_go: frozenset[SequenceId] = frozenset()
    lasts: int = 0


@dataclass(frozen=True, slots=True)
class StepPace:
    """What the last steps took. `num_turns`: prefill turns so far. `turn_s`: how long the last one took; since then
    running streams have had `num_decodes` steps, which took `decode_s`, and an ordinary one takes `step_s`. `num_held`:
    for so many steps the next turn was held. The default knows of none."""

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
    """Compute prompt positions [start, end); never empty."""

    id: SequenceId
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`preempt`: after their last `decode`. `is_held`: a turn waits for somebody to be restored. `num_waited`: what
    changes of it, by sequence. `admitted_bytes`: what those who are admitted take of the budget's room."""

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
        """And nobody waits for anything."""
        return not (self.admit or self.prefill or self.preempt or self.num_waited or self.is_held)


UNBOUNDED = StepBudget()
UNPACED = StepPace()
