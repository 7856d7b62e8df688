"""Memory as a test has it: what was set is read, and what is allocated in it is counted."""

from dataclasses import replace

from domain.memory.ledger import MemoryReading


class FakeMemory:
    """A MemoryProbe. Any thread may read; `peak_bytes`: the most that was ever held."""

    def __init__(
        self, total_bytes: int | None = None, held_bytes: int | None = None, available_bytes: int | None = None
    ) -> None:
        self._reading = MemoryReading(total_bytes, available_bytes, held_bytes)
        self.peak_bytes = held_bytes or 0

    def read(self) -> MemoryReading:
        return self._reading

    def hold(self, held_bytes: int, cached_bytes: int = 0) -> None:
        """From now on so much is held, `cached_bytes` of it only kept."""
        self._reading = replace(self._reading, held_bytes=held_bytes, cached_bytes=cached_bytes)
        self.peak_bytes = max(self.peak_bytes, held_bytes)

    def leave(self, available_bytes: int | None) -> None:
        """From now on so much is left for anybody."""
        self._reading = replace(self._reading, available_bytes=available_bytes)
