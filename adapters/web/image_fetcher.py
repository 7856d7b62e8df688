"""Images fetched by URL from the hosts that the operator lists. Any thread; blocking, with a deadline.

A client names the URL and a name server the address, so neither may lead to what only this machine can reach: a name is
resolved once, every address it has must be a public one, and the connection goes to that address. Redirects are checked
like the first URL. Nothing of the server's is sent: no cookies, no proxy, no credentials.
"""

import http.client
import socket
import ssl
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Timer
from time import monotonic
from urllib.parse import SplitResult, urljoin, urlsplit

from domain.byte_size import format_bytes
from domain.errors import InvalidRequest
from domain.host_name import bare_host, is_public
from domain.printable import printable
from domain.request.media import MAX_IMAGE_BYTES

TIMEOUT_S = 10.0
"""The deadline of a file, redirects included."""

MAX_REDIRECTS = 3
_PORTS = {"http": 80, "https": 443}


def resolved(host: str, port: int) -> list[str]:
    """Returns the addresses of a name."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class _Unfetched(Exception):
    """The reason why there is no file."""


class ImageFetcher:
    """A FetchImage. `hosts`: returns names, as in URLs; without any, nothing is fetched."""

    def __init__(
        self,
        hosts: Callable[[], Collection[str]],
        timeout_s: float = TIMEOUT_S,
        resolve: Callable[[str, int], Sequence[str]] = resolved,
        connect: Callable[[tuple[str, int], float], socket.socket] = socket.create_connection,
    ) -> None:
        self._hosts = hosts
        self._timeout_s, self._resolve, self._connect = timeout_s, resolve, connect

    def __call__(self, url: str, field: str, max_bytes: int) -> bytes:
        ends_s = monotonic() + self._timeout_s
        try:
            for _ in range(MAX_REDIRECTS + 1):
                found = self._get(urlsplit(url), min(max_bytes, MAX_IMAGE_BYTES), ends_s)
                if isinstance(found, bytes):
                    return found
                url = urljoin(url, found)
            reason = f"more than {MAX_REDIRECTS} redirects"
        except _Unfetched as error:
            reason = str(error)
        except ValueError:
            reason = "it is no URL"
        except (OSError, http.client.HTTPException) as error:
            reason = f"its host did not answer as it should ({type(error).__name__})"
        raise InvalidRequest(f"{field}: the image was not fetched: {reason}; send a data URL", param=field)

    def _get(self, url: SplitResult, limit: int, ends_s: float) -> bytes | str:
        """Returns the file, or where it redirects to."""
        host, port = bare_host(url.hostname or ""), _PORTS.get(url.scheme)
        if port is None or url.port not in (None, port) or "@" in url.netloc:
            raise _Unfetched("only http and https URLs without port and user are fetched")
        if host is None or host not in self._hosts():
            raise _Unfetched(f"the host {printable(url.hostname or '')} is not listed in server.image_hosts")
        addresses = self._resolve(host, port)
        if not addresses or not all(map(is_public, addresses)):
            raise _Unfetched(f"{host} has an address that is not public")
        if (left_s := ends_s - monotonic()) <= 0:
            raise TimeoutError
        sock = self._connect((addresses[0], port), left_s)
        same = sock.dup()  # TLS takes the other one over
        deadline = Timer(max(0.0, ends_s - monotonic()), _shut, (same,))
        deadline.start()
        try:
            if url.scheme == "https":
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
            connection = http.client.HTTPConnection(host, port)
            connection.sock = sock
            target = url._replace(scheme="", netloc="", fragment="").geturl() or "/"
            connection.request("GET", target, headers={"Accept": "image/*", "Accept-Encoding": "identity"})
            with connection.getresponse() as response:
                found = _read(response, limit)
            if monotonic() >= ends_s:  # the end may be that of the deadline
                raise TimeoutError
            return found
        finally:
            deadline.cancel()
            sock.close()
            same.close()


def _read(response: http.client.HTTPResponse, limit: int) -> bytes | str:
    if response.status in (301, 302, 303, 307, 308):
        return response.getheader("Location") or ""
    if response.status != 200:
        raise _Unfetched(f"its host answered {response.status}")
    data = response.read(limit + 1)
    if len(data) > limit:
        raise _Unfetched(f"it has more than {format_bytes(limit)}")
    if response.length:
        raise _Unfetched("it ended before the whole file was sent")
    return data


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
