"""A sequence's right to put records into the cache. Clearing its namespace ends it.

A request that runs while its namespace is cleared still holds state from before. It goes on, and stores nothing any
more: records are put only while the tenure is held, and clearing ends tenures before it removes anything. So nothing
that was cleared comes back.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import RLock
from weakref import WeakSet

from domain.record import NamespaceInfo


class Tenure:
    """One sequence's; made by Tenures."""

    __slots__ = ("__weakref__", "_lock", "info", "is_over")

    def __init__(self, info: NamespaceInfo, lock: RLock) -> None:
        self.info = info
        self.is_over = False
        self._lock = lock

    @contextmanager
    def held(self) -> Generator[bool]:
        """Whether records may be put; nobody clears until the block ends. Not for I/O."""
        with self._lock:
            yield not self.is_over


class Tenures:
    """Any thread."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._open: WeakSet[Tenure] = WeakSet()

    def begin(self, info: NamespaceInfo) -> Tenure:
        with self._lock:
            tenure = Tenure(info, self._lock)
            self._open.add(tenure)
            return tenure

    def end(self, includes: Callable[[NamespaceInfo], bool]) -> None:
        """Of these namespaces. What begins later is not concerned."""
        with self._lock:
            for tenure in [tenure for tenure in self._open if includes(tenure.info)]:
                tenure.is_over = True
                self._open.discard(tenure)


__all__ = ("Tenure", "Tenures")
