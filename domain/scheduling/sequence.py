"""The state of one token stream: its lifecycle as a table, its progress as counters.

        QUEUED ──► PREFILLING ──► DECODING ──► FINISHED (after PREFILLING if no token is wanted)
          │  └► RESTORING ─┘│         │
          │         ▲ └──►│ │         │
          │         └── PREEMPTED ◄───┘      its state is released, and its output becomes part of its prompt
          └──────┴──────────┴─────────┴──► CANCELLED | FAILED

A sequence with output may also be FINISHED while it is preempted or being restored: a stop string was found in it.
Everything that affects the lifecycle is in this file; the engine loop only requests transitions that the table has.
"""

from dataclasses import dataclass, field
from enum import Enum

from domain.errors import IllegalTransition
from domain.id_row import IdRow
from domain.ids import SequenceId


class Phase(Enum):
    QUEUED = "queued"
    PREEMPTED = "preempted"
    RESTORING = "restoring"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    __hash__ = object.__hash__  # read for every row many times a step, and Enum would hash the name in Python


WAITING = frozenset({Phase.QUEUED, Phase.PREEMPTED})
ACTIVE = frozenset({Phase.RESTORING, Phase.PREFILLING, Phase.DECODING})
"""Phases without a place in the batch (WAITING) and with one (ACTIVE)."""

_ENDS = frozenset({Phase.FINISHED, Phase.CANCELLED, Phase.FAILED})

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.RESTORING, Phase.PREFILLING, Phase.CANCELLED, Phase.FAILED}),
    Phase.PREEMPTED: frozenset({Phase.RESTORING}) | _ENDS,
    Phase.RESTORING: frozenset({Phase.PREFILLING, Phase.PREEMPTED}) | _ENDS,
    Phase.PREFILLING: frozenset({Phase.DECODING, Phase.PREEMPTED}) | _ENDS,
    Phase.DECODING: frozenset({Phase.PREEMPTED}) | _ENDS,
    Phase.FINISHED: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.FAILED: frozenset(),
}


MAX_ALONE = 3
"""The number of preemptions in a row that a sequence may suffer while no other one runs, each within MIN_PROGRESS of
the first; after them it is too large for the memory there is."""

MIN_PROGRESS = 256
"""Progress in tokens that restarts the count."""


@dataclass(slots=True)
class Sequence:
    """One sequence and its progress. Mutable, owned by the engine loop's thread.

    `num_computed` is the position of the model state while prefilling: how many leading tokens of `fed_ids` it covers.
    The last of them is always computed: the next output token is chosen from its logits. `fed_ids`: the tokens that are
    prefilled: the prompt, and the `num_resumed` output tokens from before the last preemption, or from another engine.
    `num_preempted`: number of preemptions so far.
    """

    id: SequenceId
    prompt_ids: IdRow
    max_new_tokens: int
    phase: Phase = Phase.QUEUED
    num_computed: int = 0
    output_ids: list[int] = field(default_factory=list[int])
    fed_ids: IdRow = field(init=False)
    num_resumed: int = field(init=False)
    num_preempted: int = 0
    _num_alone: int = 0
    _position_alone: int = 0

    def __post_init__(self) -> None:
        self._feed()

    @property
    def position(self) -> int:
        """The number of tokens that are computed, or about to be: all of them while decoding."""
        return self.num_computed + max(0, len(self.output_ids) - self.num_resumed)

    def may_resume(self, *, is_alone: bool) -> bool:
        """Counts a preemption; `is_alone`: no other sequence runs. Returns False when there were too many of these
        without progress, so that the sequence can never end."""
        self.num_preempted += 1
        if not is_alone or self.position >= self._position_alone + MIN_PROGRESS:
            self._num_alone, self._position_alone = 0, self.position
        self._num_alone += is_alone
        return self._num_alone <= MAX_ALONE

    def preempt(self) -> None:
        """Restarts from an empty state, with the output as part of the prompt. Raises as `enter`."""
        self.enter(Phase.PREEMPTED)
        self._feed()
        self.num_computed = 0

    def enter(self, phase: Phase) -> None:
        """Moves to `phase`. Raises IllegalTransition when the table has no such step."""
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalTransition(f"sequence {self.id} cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase

    def _feed(self) -> None:
        self.fed_ids = self.prompt_ids.followed_by(self.output_ids) if self.output_ids else self.prompt_ids
        self.num_resumed = len(self.output_ids)
