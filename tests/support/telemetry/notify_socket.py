"""The other end of systemd's notification protocol: a real datagram socket that keeps what it receives."""

import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from tests.support.patience import PATIENCE_S


class NotifySocket:
    """`address`: for NOTIFY_SOCKET."""

    def __init__(self, listening: socket.socket, address: str) -> None:
        self._socket = listening
        self._socket.settimeout(PATIENCE_S)
        self.address = address

    def next(self) -> list[str]:
        """The lines of one datagram; waits for it."""
        return self._socket.recv(4096).decode().splitlines()

    def read_until(self, line: str) -> None:
        while line not in self.next():
            pass

    def waiting(self) -> list[str]:
        """The lines of all unread datagrams; does not wait."""
        self._socket.setblocking(False)
        lines: list[str] = []
        try:
            while True:
                lines += self._socket.recv(4096).decode().splitlines()
        except BlockingIOError:
            return lines
        finally:
            self._socket.settimeout(PATIENCE_S)


@contextmanager
def notify_socket(*, is_abstract: bool = False) -> Iterator[NotifySocket]:
    """`is_abstract`: in Linux's abstract namespace. Otherwise under /tmp: a socket's path has 104 bytes at most, and
    the folder of a test may have more."""
    name = f"cairn-test-{secrets.token_hex(8)}"
    with TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        address = f"@{name}" if is_abstract else f"{folder}/{name}"
        listening.bind(address.replace("@", "\0"))
        yield NotifySocket(listening, address)


HAS_ABSTRACT = sys.platform == "linux"
