"""The launch of the server's processes, and the event loop of server and engine. Imports almost nothing, because it
runs before anything else is imported."""

import asyncio

from adapters.engine_process.child import ChildProcess

CHILD = "interfaces.cli.server.engine_child"
"""The module of the engine's process; run by name, never imported."""

IMAGE_CHILD = "interfaces.cli.server.image_child"
"""The module of the processes that read images and files; run by name, never imported."""

QUANTISE_CHILD = "interfaces.cli.server.quantise_child"
"""The module of the process that quantises a model; run by name, never imported."""


def engine_child(backend: str) -> ChildProcess:
    """A child that is not started yet. `backend`: `engine.backend`, which it imports before its settings arrive."""
    return ChildProcess(CHILD, backend)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of a process: uvloop where it is installed, for `asyncio.Runner(loop_factory=...)`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
