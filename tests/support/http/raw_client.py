"""A client at the level of the socket: it can stop reading, and leave at any moment."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from tests.support.patience import PATIENCE_S


class RawClient:
    """One connection and one POST. `receive_buffer_bytes` makes the client a slow one; `announce_extra_bytes`, one
    whose body never comes to its end."""

    def __init__(
        self,
        base_url: str,
        path: str,
        body: Any,
        receive_buffer_bytes: int | None = None,
        announce_extra_bytes: int = 0,
    ) -> None:
        address = urlsplit(base_url)
        payload = json.dumps(body).encode()
        length = len(payload) + announce_extra_bytes
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n"
        )
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((address.hostname, address.port))
        self._socket.sendall(head.encode() + payload)
        self.received = b""

    def read_until(self, marker: bytes) -> bytes:
        """Everything received so far, once it holds `marker`."""
        while marker not in self.received:
            data = self._socket.recv(65_536)
            assert data, f"the server closed the connection before {marker!r}: {self.received[-300:]!r}"
            self.received += data
        return self.received

    def leave(self) -> None:
        self._socket.close()
