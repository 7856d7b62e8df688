"""When models that nobody uses are let go of: one timer for each idle model that has a time to live."""

import asyncio
from collections.abc import Callable, Iterable

from domain.ids import ModelId


class IdleTimers:
    """Event loop only. `expire` is called once for a model that was idle for all of its time."""

    def __init__(self, ttl_s: Callable[[ModelId], float | None], expire: Callable[[ModelId], None]) -> None:
        """`ttl_s`: None for a model that may stay."""
        self._ttl_s = ttl_s
        self._expire = expire
        self._timers: dict[ModelId, asyncio.TimerHandle] = {}

    def follow(self, idle: Iterable[ModelId]) -> None:
        """These are idle now, and no others: who is so since before keeps its timer."""
        now_idle = set(idle)
        for id in self._timers.keys() - now_idle:
            self._timers.pop(id).cancel()
        for id in now_idle - self._timers.keys():
            if (ttl_s := self._ttl_s(id)) is not None:
                self._timers[id] = asyncio.get_running_loop().call_later(ttl_s, self._end, id)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _end(self, id: ModelId) -> None:
        del self._timers[id]
        self._expire(id)


__all__ = ("IdleTimers",)
