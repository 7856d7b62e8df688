"""The keys of a running server, and the file they come from, watched for changes.

Invariant: a file that cannot be used changes nothing. The keys that were read before stay, and it is told; only a
server that has never read its file does not start.
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
    """Made in any thread, then event loop only. `ring` is what the server asks. Raises InvalidKeys when the file
    cannot be used."""

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
            self._read(self._file)

    def look_now(self) -> None:
        """Read the file again, changed or not."""
        self._is_wanted.set()

    @asynccontextmanager
    async def watching(self, _app: object = None) -> AsyncGenerator[None]:
        """Inside, changes of the file are followed."""
        task = asyncio.create_task(self._watch(self._file)) if self._file is not None else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _watch(self, file: KeyFile) -> None:
        lane = Lane("key file", 1)  # a volume that hangs holds this thread and nothing else
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_every_s):
                        await self._is_wanted.wait()
                await self._look(file, lane)
        finally:
            lane.close()

    async def _look(self, file: KeyFile, lane: Lane) -> None:
        is_wanted = self._is_wanted.is_set()
        self._is_wanted.clear()
        try:
            if is_wanted or await lane.run(file.stamp) != self._seen:
                await self._read_again(file, lane)
        except Exception as error:
            self._tell(f"{type(error).__name__} while reading the key file")
            _log.error("the key file was not read", exc_info=error)

    async def _read_again(self, file: KeyFile, lane: Lane) -> None:
        self._seen = await lane.run(file.stamp)  # before it is read: what changes meanwhile is another stamp
        try:
            self.ring.replace([*self._own, *await lane.run(file.read)])
        except InvalidKeys as error:
            self._tell(error.message)
            _log.error("%s; the keys of before stay", error.message)
        else:
            _log.info("the key file was read again: %d keys", len(self.ring))

    def _read(self, file: KeyFile) -> None:
        self._seen = file.stamp()
        self.ring.replace([*self._own, *file.read()])

    def _tell(self, message: str) -> None:
        self._events.emit(FaultObserved("keys.read", message, self._clock.now_ns()))


__all__ = ("LOOK_EVERY_S", "ServerKeys")
