"""The entry of an engine's own process: `cairn serve --engine process` starts it, nobody else.

Its only argument is a descriptor, its end of a socket; its settings come through that.
"""

import asyncio
import sys
from collections.abc import Callable

from adapters.engine_process.host import Hosted, serve_parent
from interfaces.cli.leave import leave


def make_engine(settings: bytes, hold: Callable[[], None]) -> Hosted:
    """A MakeEngine: the token side, and nothing else."""
    from interfaces.cli.logs import configure_logging
    from interfaces.composition.engine_process import decode_settings
    from interfaces.composition.token_side import host_token_side

    found = decode_settings(settings)
    configure_logging(found.server.log_level, found.server.log_format)
    return host_token_side(found, hold)


def warm_up() -> object:
    """Import what every engine needs."""
    from interfaces.composition import token_side

    return token_side


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The quickest there is: each step goes through it once."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


if __name__ == "__main__":
    leave(serve_parent(int(sys.argv[1]), make_engine, new_event_loop, warm_up))
