"""One token stream being computed: its lifecycle as a table, its progress as two counters.

        QUEUED ──► PREFILLING ──► DECODING ──► FINISHED (after PREFILLING if no token is wanted)
          │  └► RESTORING ─┘│         │
          └──────┴──────────┴─────────┴──► CANCELLED | FAILED

Everything that affects the lifecycle lives in this file; the engine loop only asks for steps the table has.
"""

from dataclasses import dataclass, field
from enum import Enum

from domain.errors import IllegalTransition
from domain.ids import SequenceId


class Phase(Enum):
    QUEUED = "queued"
    RESTORING = "restoring"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.RESTORING, Phase.PREFILLING, Phase.CANCELLED, Phase.FAILED}),
    Phase.RESTORING: frozenset({Phase.PREFILLING, Phase.CANCELLED, Phase.FAILED}),
    Phase.PREFILLING: frozenset({Phase.DECODING, Phase.FINISHED, Phase.CANCELLED, Phase.FAILED}),
    Phase.DECODING: frozenset({Phase.FINISHED, Phase.CANCELLED, Phase.FAILED}),
    Phase.FINISHED: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.FAILED: frozenset(),
}


@dataclass(slots=True)
class Sequence:
    """Mutable, owned by the engine loop's thread.

    `num_computed` is the position of the model state while prefilling: how many leading tokens of `prompt_ids` it
    covers. The last prompt token is always computed: the first output token is chosen from its logits.
    """

    id: SequenceId
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    phase: Phase = Phase.QUEUED
    num_computed: int = 0
    output_ids: list[int] = field(default_factory=list[int])

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.prompt_ids) + len(self.output_ids)

    def enter(self, phase: Phase) -> None:
        """Move to `phase`. Raises IllegalTransition when the table has no such step."""
        if phase not in TRANSITIONS[self.phase]:
            raise IllegalTransition(f"sequence {self.id}: {self.phase.value} to {phase.value}")
        self.phase = phase


__all__ = ("TRANSITIONS", "Phase", "Sequence")
