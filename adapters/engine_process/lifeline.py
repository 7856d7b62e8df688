"""What an engine's process owes the one that started it: it minds no terminal, and does not outlive its parent.

SIGINT, SIGTERM, SIGHUP    ignored: a terminal's or a supervisor's, meant for the server, which stops its engine
the parent's end           Linux kills this process with it; everywhere, end of file on the socket ends it
a crash                    every thread's stack, on standard error
"""

import ctypes
import faulthandler
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1


def take_up(descriptor: int) -> socket.socket:
    """The child's end of the socket. First thing in the child, on its main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()
    _die_with_parent()
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    return sock


def _die_with_parent() -> None:
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended in between, and nobody would say so
        os._exit(1)


__all__ = ("take_up",)
