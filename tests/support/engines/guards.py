"""Memory guards for tests: one that bounds nothing, and one that admits nothing until it is opened."""

from collections.abc import Mapping, Sequence

from adapters.fake.environment import FakeClock, FakeMemory
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.token_side.memory_guard import MemoryGuard
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.scheduling.step_values import SequenceView, StepBudget, StepLimits
from tests.support.telemetry.recording import RecordingEvents


class UnboundedGuard(MemoryGuard):
    """A MemoryGuard without limits that looks at no cache; tests override what they steer."""

    def __init__(self, steps: StepLimits | None = None) -> None:
        super().__init__(
            probe=FakeMemory(),
            limits=None,
            hot=HotTier(0),
            live=LiveTier(),
            queued_bytes=lambda: 0,
            steps=steps or StepLimits(8, 256, 256),
            events=RecordingEvents(),
            clock=FakeClock(),
        )

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        return 0

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        return StepBudget()


class ClosedGuard(UnboundedGuard):
    """`is_open`: any thread."""

    is_open = False

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        return StepBudget() if self.is_open else StepBudget(room_bytes=0, admits=False)
