"""The client of a RESP server, single or a cluster, and its errors as those of the port.

The library's defaults are not ours: it does not compare a certificate's name with the host's (for a cluster, not even
when it is asked to), it identifies itself in two more calls a connection, it connects to whatever node a server names,
and it waits for as long as bytes arrive.
"""

import socket
import threading
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from math import inf
from threading import Lock
from time import monotonic
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from valkey import Valkey
from valkey.backoff import NoBackoff
from valkey.cluster import ValkeyCluster
from valkey.connection import Connection, SSLConnection
from valkey.exceptions import ConnectionError as NoConnection
from valkey.exceptions import OutOfMemoryError, ResponseError, ValkeyClusterException, ValkeyError
from valkey.exceptions import TimeoutError as NoAnswer
from valkey.retry import Retry

from application.ports.shared_store import SharedFailure, SharedStoreError
from application.services.faults import explained

Command: TypeAlias = tuple[bytes | str | int, ...]

NAMES_AT_ONCE = 1_000
READ_BYTES = 1 << 20
"""Bytes that one call takes from a socket at most: fewer calls for values of megabytes."""


CALL_S = 30.0
"""The deadline of a call, a tenth of a listing's, however steadily their bytes arrive."""

OTHER_BYTES, LISTING_BYTES = 16 << 20, 64 << 20
"""Bytes that a call may receive beyond the ranges that it reads, and that a listing may receive."""


class _Allowance(threading.local):
    """The time and the bytes that are left to this thread's call."""

    ends_s = left_bytes = inf


class _Socket:
    """A socket that is read within the allowance of the thread's call."""

    def __init__(self, sock: Any, allowance: _Allowance) -> None:
        self._sock, self._allowance = sock, allowance

    def recv_into(self, buffer: Any) -> int:
        if monotonic() >= self._allowance.ends_s:
            raise NoAnswer("the answer takes too long")
        num_bytes = int(self._sock.recv_into(buffer))
        self._allowance.left_bytes -= num_bytes
        if self._allowance.left_bytes < 0:
            raise NoAnswer("the answer is longer than any that was asked for")
        return num_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class RespConnection:
    """Connects on first use. Any thread. `url`: as `store.shared`. `nodes`: of a cluster, those beside the URL's host.
    `timeout_s`: of a connection and of each piece of an answer; `call_s`: of a call."""

    def __init__(
        self, url: str, password: str | None, timeout_s: float, nodes: Collection[str] = (), call_s: float = CALL_S
    ) -> None:
        parts = urlsplit(url)
        self._host, self._nodes, self._call_s = parts.hostname or "", frozenset(nodes), call_s
        self._allowance = _Allowance()
        # The scheme would choose the library's class.
        self._url = url.replace("rediss://", "redis://", 1)
        self._address = f"{parts.hostname}:{parts.port or 6379}"
        self._arguments: dict[str, Any] = {
            "password": password,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "socket_keepalive": True,
            "lib_name": None,
            "lib_version": None,
            "connection_class": self._connection_class(parts.scheme == "rediss"),
        }
        self._lock = Lock()
        self._client: Any = None
        self._is_closed = False

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Sends all commands at once, returns their answers. Raises SharedStoreError, also for one answer that is an
        error."""
        answers = self._answers(commands)
        wrong = [command for command, answer in zip(commands, answers, strict=True) if _is_of_wrong_type(answer)]
        if wrong:  # no value of ours
            self._answers([("UNLINK", command[1]) for command in wrong])
            answers = self._answers(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                with self._errors():
                    raise answer
        return answers

    def _answers(self, commands: Sequence[Command]) -> list[Any]:
        """Returns the answers, errors as well."""
        if not commands:
            return []
        asked = sum(int(command[3]) - int(command[2]) + 1 for command in commands if command[0] == "GETRANGE")
        with self._errors(asked + OTHER_BYTES, self._call_s):
            pipeline = self._connected().pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            # An error that the library raises itself would quote the command, values and all.
            return cast("list[Any]", pipeline.execute(raise_on_error=False))

    def names(self, pattern: str) -> list[bytes]:
        """Returns the names of all values that match. Raises SharedStoreError."""
        with self._errors(LISTING_BYTES, 10 * self._call_s):
            return list(self._connected().scan_iter(match=pattern, count=NAMES_AT_ONCE))

    def close(self) -> None:
        with self._lock:
            client, self._client, self._is_closed = self._client, None, True
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        with self._lock:
            if self._is_closed:
                raise NoConnection("the shared store was closed")
            self._client = self._client or self._connect()
            return self._client

    def _connect(self) -> Any:
        # A connection that the server has closed since its last use costs one more try, and no request.
        client = cast("Any", Valkey).from_url(
            self._url, retry=Retry(NoBackoff(), 1, (NoConnection,)), **self._arguments
        )
        client.connection_pool.connection_kwargs["socket_read_size"] = READ_BYTES
        if client.info("server").get("redis_mode") != "cluster":
            return client
        client.close()
        return cast("Any", ValkeyCluster).from_url(self._url, cluster_error_retry_attempts=1, **self._arguments)

    def _connection_class(self, is_tls: bool) -> type:
        owner = self
        base: Any = SSLConnection if is_tls else Connection
        options = {"ssl_cert_reqs": "required", "ssl_check_hostname": True} if is_tls else {}

        class Bounded(base):  # type: ignore[misc]
            def __init__(self, **given: Any) -> None:
                inner: Any = super()
                inner.__init__(**given | options)

            def _connect(self) -> _Socket:
                if not owner._is_known(self.host):
                    raise ValkeyError(
                        f"it names a node {self.host}, which gets no password and no records; if it is one of the"
                        " cluster's, list it in store.shared_nodes"
                    )
                inner: Any = super()
                return _Socket(inner._connect(), owner._allowance)

        return Bounded

    def _is_known(self, host: str) -> bool:
        """Returns whether a host is the URL's, by name or address, or a node that is listed."""
        named = {self._host, *self._nodes}
        return host in named or host in {entry[4][0] for entry in socket.getaddrinfo(self._host, None)}

    @contextmanager
    def _errors(self, max_bytes: float = inf, max_s: float = inf) -> Generator[None]:
        self._allowance.left_bytes, self._allowance.ends_s = max_bytes, monotonic() + max_s
        try:
            yield
        except (ValkeyError, ValkeyClusterException, OSError) as error:
            failure = SharedFailure.REFUSED
            if isinstance(error, OutOfMemoryError):
                failure = SharedFailure.FULL
            elif isinstance(error, NoConnection | NoAnswer | OSError | ValkeyClusterException):
                failure = SharedFailure.UNREACHABLE
            message = explained(f"shared store {self._address}: {error}")
            raise SharedStoreError(failure, message) from None


def _is_of_wrong_type(answer: object) -> bool:
    return isinstance(answer, ResponseError) and str(answer).startswith("WRONGTYPE")
