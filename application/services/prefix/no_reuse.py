"""The session of a sequence that reuses and keeps nothing: its layout is unsupported, or reuse is off."""

from collections.abc import Sequence

from application.ports.state_access import StateAccess
from domain.ids import BlockHash, SequenceId
from domain.prefix.explanation import Explanation
from domain.scheduling.step_values import TakeOver


class NoReuse:
    """It is used as a PrefixSession, which documents the methods. `explanation`: why nothing is reused."""

    stops: tuple[int, ...] = ()
    is_looked_up = True
    is_waiting = False
    follows: SequenceId | None = None
    next_block: BlockHash | None = None
    takes_over: TakeOver | None = None

    def __init__(self, explanation: Explanation) -> None:
        self.explanation = explanation

    def refresh(self) -> None:
        pass

    def prepare(self, *, ahead: bool = False) -> None:
        pass

    def poll(self) -> bool:
        return True

    def restore(self, model: StateAccess) -> int:
        return 0

    def prefilled(self, model: StateAccess, position: int) -> None:
        pass

    def paced(self, num_tokens: int, duration_ns: int) -> None:
        pass

    def decoded(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        pass

    def end(self, model: StateAccess, output_ids: Sequence[int]) -> bool:
        return False

    def suspend(self, model: StateAccess, output_ids: Sequence[int]) -> None:
        pass

    def abandon(self) -> None:
        pass
