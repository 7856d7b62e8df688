"""The client of a RESP server, single or a cluster, and its errors as those of the port.

The library's defaults are not ours: it does not compare a certificate's name with the host's, and it identifies itself
in two more calls a connection.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from valkey import Valkey
from valkey.backoff import NoBackoff
from valkey.cluster import ValkeyCluster
from valkey.exceptions import ConnectionError as NoConnection
from valkey.exceptions import OutOfMemoryError, ValkeyClusterException, ValkeyError
from valkey.exceptions import TimeoutError as NoAnswer
from valkey.retry import Retry

from application.ports.shared_store import SharedFailure, SharedStoreError
from application.services.faults import explained

Command: TypeAlias = tuple[bytes | str | int, ...]

NAMES_AT_ONCE = 1_000
READ_BYTES = 1 << 20
"""Bytes that one call takes from a socket at most: fewer calls for values of megabytes."""


class RespConnection:
    """Connects on first use. Any thread. `url`: as `store.shared`. `timeout_s`: of a connection and of each answer."""

    def __init__(self, url: str, password: str | None, timeout_s: float) -> None:
        parts, self._url = urlsplit(url), url
        self._address = f"{parts.hostname}:{parts.port or 6379}"
        self._arguments: dict[str, Any] = {
            "password": password,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "socket_keepalive": True,
            "lib_name": None,
            "lib_version": None,
        }
        if parts.scheme == "rediss":
            self._arguments |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        self._lock = Lock()
        self._client: Any = None
        self._is_closed = False

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Sends all commands at once, returns their answers. Raises SharedStoreError, also for one answer that is an
        error."""
        if not commands:
            return []
        with self._errors():
            pipeline = self._connected().pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            # An error that the library raises itself would quote the command, values and all.
            answers = cast("list[Any]", pipeline.execute(raise_on_error=False))
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

    def names(self, pattern: str) -> list[bytes]:
        """Returns the names of all values that match. Raises SharedStoreError."""
        with self._errors():
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

    @contextmanager
    def _errors(self) -> Generator[None]:
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
