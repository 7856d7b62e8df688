"""A thread that syncs a store whose commits are not synced: at once, and then every SYNC_EVERY_S.

So the writer never waits for the disk, and a power cut costs what was committed in that time and while a sync took.
"""

from collections.abc import Callable
from threading import Event, Thread

SYNC_EVERY_S = 2.0


class BackgroundSync:
    """`sync` contains its own failures."""

    def __init__(self, sync: Callable[[], None], every_s: float = SYNC_EVERY_S) -> None:
        self._sync, self._every_s = sync, every_s
        self._is_closed = Event()
        self._thread = Thread(target=self._run, name="cairn-store-sync", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for a sync that is under way."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        self._sync()
        while not self._is_closed.wait(self._every_s):
            self._sync()


__all__ = ("SYNC_EVERY_S", "BackgroundSync")
