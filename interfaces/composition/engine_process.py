"""The engine in a child process: its supervisor, and the encoding of its settings."""

from collections.abc import Callable
from dataclasses import replace

import msgspec

from adapters.engine_process.child import ChildProcess
from adapters.engine_process.engine import EngineProcess
from application.live_settings import LiveSettings
from application.ports.clock import Clock
from application.services.text_side.supervision.engine_supervisor import EngineSupervisor
from application.settings import ServerSettings, Settings
from interfaces.composition.engine_entry import engine_child


def build_engine_process(
    live: LiveSettings, clock: Clock, first_child: ChildProcess | None, outdated: Callable[[str], object]
) -> EngineSupervisor:
    """Makes the supervisor. No child is started yet, except perhaps `first_child`. `outdated`: as in
    EngineSupervisor."""
    first, running = [first_child] if first_child is not None else [], list[EngineProcess]()

    def make(lost: Callable[[str], None]) -> EngineProcess:
        child = first.pop() if first else engine_child(live.now.engine.backend)
        running[:] = [EngineProcess(child, encode_settings(live.now), clock, lost=lost)]
        return running[0]

    def adjust() -> None:
        for one in running:
            one.adjust(encode_settings(live.now))

    live.follow(adjust)
    return EngineSupervisor(make, clock, outdated=outdated)


def encode_settings(settings: Settings) -> bytes:
    """The settings of the token side as bytes: of the server's settings only those of logging, and no key."""
    server = settings.server
    bare = ServerSettings(log_level=server.log_level, log_format=server.log_format)
    return msgspec.msgpack.encode(replace(settings, server=bare))


def decode_settings(data: bytes) -> Settings:
    """The inverse of `encode_settings`."""
    return msgspec.msgpack.decode(data, type=Settings)
