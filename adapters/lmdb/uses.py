"""Which records this process is reading now, and which it has used since the last write transaction. Any thread.

Uses are written with the next transaction; a crash loses recency only.
"""

from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Lock

from domain.record import RecordKey

_MAX_HELD_TOUCHES = 1 << 16


class RecordUses:
    """See the module docstring."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: Counter[RecordKey] = Counter()
        self._touched: dict[RecordKey, None] = {}

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use, the latest last; beyond a bound the oldest are forgotten."""
        with self._lock:
            for key in keys:
                self._touched.pop(key, None)
                self._touched[key] = None
            while len(self._touched) > _MAX_HELD_TOUCHES:
                del self._touched[next(iter(self._touched))]

    def take_touched(self) -> list[RecordKey]:
        """The uses noted since the last time."""
        with self._lock:
            touched, self._touched = list(self._touched), {}
        return touched

    @contextmanager
    def reading(self, keys: Sequence[RecordKey]) -> Generator[None]:
        with self._lock:
            self._read.update(keys)
        try:
            yield
        finally:
            with self._lock:
                self._read -= Counter(keys)

    def kept(self) -> Sequence[RecordKey]:
        """What must not be evicted now."""
        with self._lock:
            return list(self._read)


__all__ = ("RecordUses",)
