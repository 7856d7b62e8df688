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
"""The deadline of one URL, with its redirects."""

MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_PIECE_BYTES = 64 << 10
_NAT64 = IPv6Network("64:ff9b::/96")
"""Addresses that stand for IPv4 ones, perhaps private."""

Resolve = Callable[[str, int], Sequence[str]]
Connect = Callable[[tuple[str, int], float], socket.socket]


def resolved(host: str, port: int) -> list[str]:
    """Returns the addresses of a name."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: str) -> bool:
    """Returns whether an address can be reached from the internet: none of this machine, its network or its tunnels."""
    found = ip_address(address)
    if isinstance(found, IPv6Address) and (found.ipv4_mapped or found.sixtofour or found.teredo or found in _NAT64):
        return False
    return found.is_global and not found.is_multicast


class ImageFetcher:
    """A FetchImage. `hosts`: names, as in URLs."""

    def __init__(
        self,
        hosts: Collection[str],
        timeout_s: float = TIMEOUT_S,
        resolve: Resolve = resolved,
        connect: Connect = socket.create_connection,
    ) -> None:
        self._hosts = frozenset(hosts)
        self._timeout_s = timeout_s
        self._resolve = resolve
        self._connect = connect

    def __call__(self, url: str, field: str, max_bytes: int) -> bytes:
        limit = min(max_bytes, MAX_IMAGE_BYTES)
        for _ in range(MAX_REDIRECTS + 1):
            parts, host = self._checked(url, field)
            try:
                found = self._get(parts, host, limit)
            except (OSError, http.client.HTTPException) as error:
                raise _refusal(field, f"{host} did not answer as it should ({type(error).__name__})") from None
            except _Unfetched as error:
                raise _refusal(field, f"{host} {error}") from None
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
        raise _refusal(field, f"more than {MAX_REDIRECTS} redirects")

    def _checked(self, url: str, field: str) -> tuple[SplitResult, str]:
        try:
            parts = urlsplit(url)
            host, port = bare_host(parts.hostname or "") or "", parts.port
        except ValueError:
            raise _refusal(field, "it is no URL") from None
        if parts.scheme not in _PORTS or port not in (None, _PORTS[parts.scheme]) or "@" in parts.netloc:
            raise _refusal(field, "only http and https URLs without port and user are fetched")
        if host not in self._hosts:
            raise _refusal(field, f"the host {printable(host)} is not listed in server.image_hosts")
        return parts, host

    def _get(self, parts: SplitResult, host: str, limit: int) -> bytes | str:
        """Returns the file, or where it redirects to."""
        addresses = self._resolve(host, _PORTS[parts.scheme])
        if not addresses or not all(map(is_public, addresses)):
            raise _Unfetched("has an address that is not public")
        sock = self._connect((addresses[0], _PORTS[parts.scheme]), self._timeout_s)
        deadline = Timer(self._timeout_s, _shut, (sock,))
        deadline.daemon = True
        deadline.start()
        try:
            if parts.scheme == "https":
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
            connection = http.client.HTTPConnection(host, _PORTS[parts.scheme])
            connection.sock = sock
            target = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
            connection.request("GET", target, headers={"Accept": "image/*", "Accept-Encoding": "identity"})
            with connection.getresponse() as response:
                return _read(response, limit)
        finally:
            deadline.cancel()
            sock.close()


class _Unfetched(Exception):
    """The reason why a host's answer is not used."""


def _read(response: http.client.HTTPResponse, limit: int) -> bytes | str:
    if response.status in _REDIRECTS:
        return response.getheader("Location") or ""
    if response.status != 200:
        raise _Unfetched(f"answered {response.status}")
    pieces, left = list[bytes](), limit
    while piece := response.read(min(_PIECE_BYTES, left + 1)):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise _Unfetched(f"sent more than {format_bytes(limit)}")
    if response.length:
        raise _Unfetched("ended before the whole file was sent")
    return b"".join(pieces)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _refusal(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: the image was not fetched: {reason}; send a data URL", param=field)
