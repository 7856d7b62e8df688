"""The entry point of the engine's process, which `cairn serve` starts.

The arguments are the descriptor of its end of a socket and the name of the backend; settings come through the socket.
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from adapters.engine_process.host import Hosted, serve_parent
from interfaces.cli.terminal.ending import leave
from interfaces.composition.engine_entry import new_event_loop


def import_engine(backend: str) -> object:
    """Imports the modules of the engine, at the same time as the server imports its own."""
    from interfaces.composition import token_side
    from interfaces.composition.backends import import_backend

    with suppress(Exception):  # the error is reported when the engine is made
        import_backend(backend)
    return token_side


def make_engine(settings: bytes, hold: Callable[[], None]) -> Hosted:
    """A MakeEngine that builds the token side only."""
    from adapters.system.log_level import set_log_level
    from interfaces.cli.terminal.logs import configure_logging
    from interfaces.composition.engine_process import decode_settings
    from interfaces.composition.token_side import host_token_side

    def adjust(changed: bytes) -> None:
        set_log_level(decode_settings(changed).server.log_level)

    found = decode_settings(settings)
    configure_logging(found.server.log_level, found.server.log_format)
    return replace(host_token_side(found, hold), adjust=adjust)


if __name__ == "__main__":
    leave(serve_parent(int(sys.argv[1]), make_engine, new_event_loop, lambda: import_engine(sys.argv[2])))
