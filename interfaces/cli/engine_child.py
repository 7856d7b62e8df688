"""The entry of an engine's own process: `cairn serve` starts it.

Its arguments are a descriptor, its end of a socket, and the backend that it will be asked for; its settings come
through the socket.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from contextlib import suppress

from adapters.engine_process.host import Hosted, serve_parent
from interfaces.cli.leave import leave
from interfaces.composition.start_phases import StartPhases

_logger = logging.getLogger("cairn.engine")


class EngineChild:
    """One start of it, told in one line of the log."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._phases = StartPhases()

    def warm_up(self) -> object:
        """Import what this engine needs, while whoever launched it does the same."""
        from interfaces.composition import token_side
        from interfaces.composition.backends import import_backend

        with suppress(Exception):  # it fails again where it can be told
            import_backend(self._backend)
        self._phases.end("imports")
        return token_side

    def make_engine(self, settings: bytes, hold: Callable[[], None]) -> Hosted:
        """A MakeEngine: the token side, and nothing else."""
        from interfaces.cli.logs import configure_logging
        from interfaces.composition.engine_process import decode_settings
        from interfaces.composition.token_side import host_token_side

        found = decode_settings(settings)
        configure_logging(found.server.log_level, found.server.log_format)
        self._phases.end("settings")
        hosted = host_token_side(found, hold, self._phases)
        _logger.info("the engine's process was ready after %s", self._phases)
        return hosted


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The quickest there is: each step goes through it once."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


if __name__ == "__main__":
    child = EngineChild(sys.argv[2])
    leave(serve_parent(int(sys.argv[1]), child.make_engine, new_event_loop, child.warm_up))
