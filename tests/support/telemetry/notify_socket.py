"""The other end of systemd's notification protocol: a real datagram socket that keeps what it receives."""

import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
def notify_socket(folder: Path | None = None) -> Iterator[NotifySocket]:
    """In `folder`, or without one in Linux's abstract namespace."""
    name = f"cairn-test-{secrets.token_hex(8)}"
    address = f"@{name}" if folder is None else str(folder / name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name if folder is None else address)
        yield NotifySocket(listening, address)


HAS_ABSTRACT = sys.platform == "linux"
