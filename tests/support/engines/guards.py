"""Memory for tests: a probe, a guard that bounds nothing, and one that admits nothing until it is opened."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from adapters.fake.environment import FakeClock
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.token_side.memory_guard import MemoryGuard
from domain.ids import SequenceId
from domain.memory.ledger import MemoryReading
from domain.memory.shape import MemoryShape
from domain.scheduling.step_values import SequenceView, StepBudget, StepLimits
from tests.support.telemetry.recording import RecordingEvents


class FakeMemory:
    """A MemoryProbe that returns the readings of a test. Any thread may read. `peak_bytes`: the most that was ever
    held."""

    def __init__(
        self, total_bytes: int | None = None, held_bytes: int | None = None, available_bytes: int | None = None
    ) -> None:
        self._reading = MemoryReading(total_bytes, available_bytes, held_bytes)
        self.peak_bytes = held_bytes or 0

    def read(self) -> MemoryReading:
        return self._reading

    def hold(self, held_bytes: int, cached_bytes: int = 0) -> None:
        """Sets the bytes that are held, `cached_bytes` of which are freed buffers."""
        self._reading = replace(self._reading, held_bytes=held_bytes, cached_bytes=cached_bytes)
        self.peak_bytes = max(self.peak_bytes, held_bytes)

    def leave(self, available_bytes: int | None) -> None:
        """Sets the bytes that are available to any process."""
        self._reading = replace(self._reading, available_bytes=available_bytes)


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
