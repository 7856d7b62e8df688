"""SIGINT and SIGTERM for a server: the first asks it to stop, the second ends the process at once."""

import asyncio
import os
import signal
from collections.abc import Callable

import typer

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Installed on the running event loop, for good. `is_stopping` is True from the first signal on."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self.is_stopping = False
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._received, number)

    def _received(self, number: signal.Signals) -> None:
        if self.is_stopping:
            # Not sys.exit: whatever hangs would hang it too. Stored data is safe against kill -9.
            os._exit(128 + number)
        self.is_stopping = True
        typer.echo("stopping: running requests may finish; once more to stop at once", err=True)
        self._on_first()


__all__ = ("SIGNALS", "StopSignals")
