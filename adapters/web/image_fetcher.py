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
from ipaddress import IPv6Address, IPv6Network, ip_address
from threading import Timer
from urllib.parse import SplitResult, urljoin, urlsplit

from domain.byte_size import format_bytes
from domain.errors import InvalidRequest
from domain.host_name import bare_host
from domain.printable import printable
from domain.request.media import MAX_IMAGE_BYTES

TIMEOUT_S = 10.0
"""The deadline of one answer."""

MAX_REDIRECTS = 3
_PORTS = {"http": 80, "https": 443}
_NAT64 = IPv6Network("64:ff9b::/96")
"""Addresses that stand for IPv4 ones, perhaps private."""


def resolved(host: str, port: int) -> list[str]:
    """Returns the addresses of a name."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: str) -> bool:
    """Returns whether an address can be reached from the internet: none of this machine, its network or its tunnels."""
    found = ip_address(address)
    if isinstance(found, IPv6Address) and (found.ipv4_mapped or found.sixtofour or found.teredo or found in _NAT64):
        return False
    return found.is_global and not found.is_multicast


class _Unfetched(Exception):
    """The reason why there is no file."""


class ImageFetcher:
    """A FetchImage. `hosts`: names, as in URLs; without any, nothing is fetched."""

    def __init__(
        self,
        hosts: Collection[str],
        timeout_s: float = TIMEOUT_S,
        resolve: Callable[[str, int], Sequence[str]] = resolved,
        connect: Callable[[tuple[str, int], float], socket.socket] = socket.create_connection,
    ) -> None:
        self._hosts = frozenset(hosts)
        self._timeout_s, self._resolve, self._connect = timeout_s, resolve, connect

    def __call__(self, url: str, field: str, max_bytes: int) -> bytes:
        try:
            for _ in range(MAX_REDIRECTS + 1):
                found = self._get(urlsplit(url), min(max_bytes, MAX_IMAGE_BYTES))
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

    def _get(self, url: SplitResult, limit: int) -> bytes | str:
        """Returns the file, or where it redirects to."""
        host, port = bare_host(url.hostname or ""), _PORTS.get(url.scheme)
        if port is None or url.port not in (None, port) or "@" in url.netloc:
            raise _Unfetched("only http and https URLs without port and user are fetched")
        if host is None or host not in self._hosts:
            raise _Unfetched(f"the host {printable(url.hostname or '')} is not listed in server.image_hosts")
        addresses = self._resolve(host, port)
        if not addresses or not all(map(is_public, addresses)):
            raise _Unfetched(f"{host} has an address that is not public")
        sock = self._connect((addresses[0], port), self._timeout_s)
        deadline = Timer(self._timeout_s, _shut, (sock,))
        deadline.start()
        try:
            if url.scheme == "https":
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
            connection = http.client.HTTPConnection(host, port)
            connection.sock = sock
            target = url._replace(scheme="", netloc="", fragment="").geturl() or "/"
            connection.request("GET", target, headers={"Accept": "image/*", "Accept-Encoding": "identity"})
            with connection.getresponse() as response:
                return _read(response, limit)
        finally:
            deadline.cancel()
            sock.close()


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
