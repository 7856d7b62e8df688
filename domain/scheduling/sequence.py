"""One token stream being computed: its lifecycle as a table, its progress as two counters.

        QUEUED ──► PREFILLING ──► DECODING ──► FINISHED (after PREFILLING if no token is wanted)
          │  └► RESTORING ─┘│         │
          │         ▲ └──►│ │         │
          │         └── PREEMPTED ◄───┘      its state is let go of; what it has put out is part of its prompt then
          └──────┴──────────┴─────────┴──► CANCELLED | FAILED

Who has put something out may also be FINISHED while it is preempted or on its way back: a stop string was found in it.
Everything that affects the lifecycle lives in this file; the engine loop only asks for steps the table has.
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

    __hash__ = object.__hash__  # every row is asked for its phase many times a step, and Enum hashes the name in Python


WAITING = frozenset({Phase.QUEUED, Phase.PREEMPTED})
ACTIVE = frozenset({Phase.RESTORING, Phase.PREFILLING, Phase.DECODING})
"""Phases without a place in the batch, and with one."""

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


@dataclass(slots=True)
class Sequence:
    """Mutable, owned by the engine loop's thread.

    `num_computed` is the position of the model state while prefilling: how many leading tokens of `fed_ids` it covers.
    The last of them is always computed: the next output token is chosen from its logits. `fed_ids`: what is prefilled:
    the prompt, and what had been put out when the sequence was last preempted, or before it came to this engine:
    `num_resumed` tokens.
    """

    id: SequenceId
    prompt_ids: IdRow
    max_new_tokens: int
    phase: Phase = Phase.QUEUED
    num_computed: int = 0
    output_ids: list[int] = field(default_factory=list[int])
    fed_ids: IdRow = field(init=False)
    num_resumed: int = field(init=False)

    def __post_init__(self) -> None:
        self._feed()

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def position(self) -> int:
        """Tokens that are computed, or about to be: while decoding, all."""
        return self.num_computed + max(0, len(self.output_ids) - self.num_resumed)

    def preempt(self) -> None:
        """Begin again from nothing, with a longer prompt. Raises as `enter`."""
        self.enter(Phase.PREEMPTED)
        self._feed()
        self.num_computed = 0

    def enter(self, phase: Phase) -> None:
        """Move to `phase`. Raises IllegalTransition when the table has no such step."""
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalTransition(f"sequence {self.id}: {self.phase.value} to {phase.value}")
        self.phase = phase

    def _feed(self) -> None:
        self.fed_ids = self.prompt_ids.followed_by(self.output_ids) if self.output_ids else self.prompt_ids
        self.num_resumed = len(self.output_ids)
