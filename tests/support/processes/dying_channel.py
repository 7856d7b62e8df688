"""A child's end of the socket that breaks at a chosen message, its own or one that came: nothing gets through after it.

The greeting is not counted. Of a message that it breaks at while sending, a part is sent, as by a process that is
killed. Whichever thread sends it: nothing of another comes behind that part.
"""

import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from adapters.engine_process.channel import Channel, framed
from adapters.engine_process.messages import greeting


class Fuse:
    """Burns down by a message at a time; None never does."""

    def __init__(self, num_messages: int | None, share_sent: float = 0.5) -> None:
        self.num_left = num_messages
        self.share_sent = share_sent

    def burns(self) -> bool:
        if self.num_left is None:
            return False
        self.num_left -= 1
        return self.num_left <= 0

    @property
    def opens(self) -> Callable[..., Channel]:
        """The function with which an EngineHost opens its channel."""
        return partial(DyingChannel, self)


class DyingChannel(Channel):
    def __init__(self, fuse: Fuse, sock: socket.socket, received: Callable[[bytes], None], *rest: Any) -> None:
        super().__init__(sock, partial(self._take, received), *rest)
        self._fuse = fuse
        self._sock = sock
        self._turn = threading.RLock()

    def send(self, payload: bytes) -> None:
        with self._turn:
            if payload != greeting() and self._fuse.burns():
                self._break(framed(payload))
            else:
                super().send(payload)

    def _take(self, received: Callable[[bytes], None], payload: bytes) -> None:
        with self._turn:
            if burns := self._fuse.burns():
                self._break(b"")
        if not burns:
            received(payload)

    def _break(self, data: bytes) -> None:
        try:
            self._sock.send(data[: int(len(data) * self._fuse.share_sent)])
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is broken already
