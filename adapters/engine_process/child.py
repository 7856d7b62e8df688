"""One child process: spawned with one socket, killed if need be, and seen off when it has ended.

It is a fresh interpreter (`exec`, never a bare fork: threads and MLX do not survive one), in a session of its own, and
has of this process's descriptors standard error and its end of the socket.

Linux ends a child with the thread that made it (`PR_SET_PDEATHSIG`, which the child asks for): `start` belongs to the
thread that lives as long as the server.
"""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from application.installation import child_environment


class Child(Protocol):
    """The host of an engine at the other end of a socket, for one life."""

    @property
    def pid(self) -> int | None:
        """None until it was started."""
        ...

    def start(self) -> socket.socket:
        """Returns this process's end. Takes a few milliseconds. Raises OSError."""
        ...

    def kill(self) -> None:
        """Nothing happens to one that has ended."""
        ...

    def abort(self) -> None:
        """As `kill`, but that it writes where each of its threads is, if it still can, and may not end at all."""
        ...

    def see_off(self, gone: Callable[[str], None]) -> None:
        """`gone` is called on a thread of its own once it is no more, with how it ended. A stop does not wait for
        one that hangs in a driver."""
        ...


class ChildProcess:
    """A Child."""

    def __init__(self, module: str, *arguments: str) -> None:
        """`module`: run as `python -m`, with the number of its descriptor and these arguments."""
        self._module = module
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def launch(self) -> None:
        """Start it before anybody talks to it: it has much to import. Raises OSError."""
        if self._ours is None:
            self._ours = self._launched()

    def start(self) -> socket.socket:
        self.launch()
        assert self._ours is not None, "it was launched"
        return self._ours

    def _launched(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            # -P: nothing of the current folder.
            command = [sys.executable, "-P", "-m", self._module, str(theirs.fileno()), *self._arguments]
            self._process = subprocess.Popen(
                command,
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                stdout=2,  # its only output is its log
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def abort(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGABRT)

    def see_off(self, gone: Callable[[str], None]) -> None:
        process = self._process
        assert process is not None, "it was not started"

        def wait() -> None:
            gone(ending(process.wait()))

        threading.Thread(target=wait, name="cairn-engine-end", daemon=True).start()


def ending(status: int) -> str:
    """`was killed by SIGKILL`, `exited with status 1`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
