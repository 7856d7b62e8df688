"""The engine in a child process: how that is started, and the settings on their way into it."""

from dataclasses import replace

import msgspec

from adapters.engine_process.child import ChildProcess
from adapters.engine_process.engine import EngineProcess
from application.ports.clock import Clock
from application.services.text_side.revived_engine import RevivedEngine
from application.settings import ServerSettings, Settings

CHILD = "interfaces.cli.engine_child"
"""The entry of the child: run, never imported."""


def build_engine_process(settings: Settings, clock: Clock) -> RevivedEngine:
    """Nothing is started yet."""
    encoded = encode_settings(settings)
    return RevivedEngine(lambda lost: EngineProcess(ChildProcess(CHILD), encoded, clock, lost=lost), clock)


def encode_settings(settings: Settings) -> bytes:
    """What the token side needs of them: of the HTTP side's only how to log, and no key."""
    server = settings.server
    bare = ServerSettings(log_level=server.log_level, log_format=server.log_format)
    return msgspec.msgpack.encode(replace(settings, server=bare))


def decode_settings(data: bytes) -> Settings:
    """As `encode_settings` wrote them."""
    return msgspec.msgpack.decode(data, type=Settings)


__all__ = ("build_engine_process", "decode_settings", "encode_settings")
