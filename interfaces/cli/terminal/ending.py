"""The ways in which a command ends: a failure, Ctrl-C, and the exit of a process that has threads left."""

import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any, NoReturn

FAILED = 1
USAGE = 2
"""The exit status of a command that was used wrongly, wrong settings included."""


def fail(message: str, status: int = FAILED) -> NoReturn:
    """Ends the command with one line on stderr."""
    import typer

    typer.echo(f"cairn: {message}", err=True)
    raise typer.Exit(status)


async def unless_interrupted(work: Coroutine[Any, Any, object]) -> bool:
    """Runs `work` to its end, or cancels it on SIGINT and returns False. Raises what `work` raises. Main thread only.

    `asyncio.Runner` handles SIGINT in Python code, which a sleeping loop runs only when another event wakes it up: with
    a model that computes for minutes, minutes later. A handler of the loop's own wakes it up.
    """
    import asyncio

    worker = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, worker.cancel)
    try:
        await asyncio.wait({worker})
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        worker.cancel()  # no effect once it has ended
    if worker.cancelled():
        return False
    worker.result()
    return True


def leave(status: int) -> NoReturn:
    """Exits at once, after everything was closed and stored.

    MLX's stream threads now and then abort an interpreter that is shutting down, and a daemon thread that wakes up
    then may crash it: a clean end would have status 134 or 139.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
