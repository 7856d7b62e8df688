"""The keys of a running server, and the file they come from, watched for changes.

Invariant: a file that cannot be used changes nothing. The keys that were read before stay, and the problem is
reported; only a server that has never read its file does not start.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from adapters.system.key_file import KeyFile, Stamp
from application.events import FaultObserved
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.services.lane import Lane
from application.settings import ServerSettings
from domain.client import KeyRing, own_keys
from domain.errors import InvalidKeys

LOOK_EVERY_S = 2.0

_log = logging.getLogger("cairn.keys")


class ServerKeys:
    """The keys of a server that runs. Made in any thread, then event loop only. `ring` finds the client of a key.
    Raises InvalidKeys when the file cannot be used."""

    def __init__(
        self, settings: ServerSettings, events: EventSink, clock: Clock, look_every_s: float = LOOK_EVERY_S
    ) -> None:
        self._own = own_keys(settings.api_key)
        self._file = KeyFile(settings.key_file) if settings.key_file is not None else None
        self._events = events
        self._clock = clock
        self._look_every_s = look_every_s
        self._seen: Stamp | None = None
        self._is_wanted = asyncio.Event()
        self.ring = KeyRing(self._own, is_open=not settings.needs_key)
        if self._file is not None:
            self._seen = self._file.stamp()
            self.ring.replace([*self._own, *self._file.read()])

    def look_now(self) -> None:
        """Read the file again, changed or not."""
        self._is_wanted.set()

    @asynccontextmanager
    async def watching(self, _app: object = None) -> AsyncGenerator[None]:
        """Inside, changes of the file are followed."""
        if self._file is None:
            yield
            return
        task = asyncio.create_task(self._watch(self._file))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, file: KeyFile) -> None:
        lane = Lane("key file", 1)  # a volume that hangs holds this thread and nothing else
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_every_s):
                        await self._is_wanted.wait()
                try:
                    await self._look(file, lane)
                except InvalidKeys as error:
                    self._report(error.message)
                except Exception as error:
                    self._report(f"{type(error).__name__} while reading the key file")
        finally:
            lane.close()

    async def _look(self, file: KeyFile, lane: Lane) -> None:
        is_wanted = self._is_wanted.is_set()
        self._is_wanted.clear()
        stamp = await lane.run(file.stamp)  # before it is read: what changes meanwhile is another stamp
        if is_wanted or stamp != self._seen:
            self._seen = stamp
            self.ring.replace([*self._own, *await lane.run(file.read)])
            _log.info("the key file was read again: %d keys", len(self.ring))

    def _report(self, problem: str) -> None:
        _log.error("%s; the keys of before stay", problem)
        self._events.emit(FaultObserved("keys.read", problem, self._clock.now_ns()))
