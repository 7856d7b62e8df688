"""A child of this process in all but the process: the host on a thread, with an event loop of its own.

Killed, it falls silent at once: its socket is gone, whatever it still does. A real one would be gone with it.
"""

import asyncio
import socket
import threading
from collections.abc import Callable

from adapters.engine_process.channel import Channel
from adapters.engine_process.host import EngineHost, MakeEngine


class HostedChild:
    """A Child."""

    def __init__(self, make: MakeEngine, open_channel: Callable[..., Channel] = Channel) -> None:
        self._make = make
        self._open_channel = open_channel
        self._theirs: socket.socket | None = None
        self._thread = threading.Thread(target=self._main, name="child")
        self._how = "was killed"
        self.pid = None

    def start(self) -> socket.socket:
        ours, self._theirs = socket.socketpair()
        self._thread.start()
        return ours

    def kill(self) -> None:
        assert self._theirs is not None, "it was started"
        try:
            self._theirs.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended

    def abort(self) -> None:
        self.kill()

    def reap(self, ended: Callable[[str], None]) -> None:
        def wait() -> None:
            self._thread.join()
            ended(self._how)

        threading.Thread(target=wait, name="seeing off").start()

    def _main(self) -> None:
        status = asyncio.run(EngineHost(self._make, open_channel=self._open_channel).run(self._theirs))
        self._how = f"exited with status {status}"
