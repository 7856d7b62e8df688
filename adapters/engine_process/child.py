"""The child process of an engine: spawned with one end of a socket, ended if necessary, and reaped.

It is a new interpreter (`exec`, never a bare fork, which threads and MLX do not survive), in a session of its own, and
inherits only standard error and its end of the socket.

Linux kills a child with the thread that created it (`PR_SET_PDEATHSIG`, which the child requests): call `start` on a
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

FOREIGN_KILL = ", not by Cairn: probably by the system, short of memory (jetsam on macOS, the OOM killer on Linux)"
"""The likely reason of a SIGKILL that this process did not send."""


class Child(Protocol):
    """The process that hosts an engine at the other end of a socket. It is started once."""

    @property
    def pid(self) -> int | None:
        """The process id; None before the start."""
        ...

    def start(self) -> socket.socket:
        """Returns this process's end. Takes a few milliseconds. Raises OSError."""
        ...

    def kill(self) -> None:
        """Kills the process. A process that has ended is left alone."""
        ...

    def abort(self) -> None:
        """Asks the process to write the stacks of its threads and abort, which a stopped process never does."""
        ...

    def reap(self, ended: Callable[[str], None]) -> None:
        """Calls `ended` with the kind of end on a separate thread, once the process has ended. A process that hangs in
        a driver may never end."""
        ...


class ChildProcess:
    """A Child that runs a module in a new interpreter."""

    def __init__(self, module: str, *arguments: str) -> None:
        """`module`: run as `python -m`, with the number of its descriptor and these arguments."""
        self._module = module
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None
        self._ours: socket.socket | None = None
        self._was_killed = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def launch(self) -> None:
        """Starts the process early, because its imports take long; `start` returns its socket later. Raises OSError."""
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
            self._was_killed = True
            self._process.kill()

    def abort(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGABRT)

    def reap(self, ended: Callable[[str], None]) -> None:
        process = self._process
        assert process is not None, "it was not started"

        def wait() -> None:
            how = ending(process.wait())
            is_foreign = process.returncode == -signal.SIGKILL and not self._was_killed
            ended(how + FOREIGN_KILL if is_foreign else how)

        threading.Thread(target=wait, name="cairn-engine-end", daemon=True).start()


def ending(status: int) -> str:
    """`was killed by SIGKILL`, `exited with status 1`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
