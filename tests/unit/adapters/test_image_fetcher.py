"""Images fetched by URL: from listed hosts and public addresses only, within limits of bytes, time and redirects."""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from adapters.web.image_fetcher import ImageFetcher
from domain.errors import InvalidRequest
from domain.host_name import is_public
from tests.support.patience import PATIENCE_S
from tests.support.processes.servers.certificates import make_certificates, server_context

HOST, OTHER, PUBLIC = "images.example", "more.example", "93.184.216.34"
FILE = b"a file" * 100


class _Pages(BaseHTTPRequestHandler):
    seen: list[str] = []  # noqa: RUF012
    gate = threading.Event()

    def do_GET(self) -> None:
        self.seen.append(f"{self.headers['Host']}{self.path}")
        name, _, more = self.path.lstrip("/").partition("/")
        if name == "to":
            self.send_response(302)
            self.send_header("Location", more)
            self.end_headers()
            return
        if name == "hangs":
            self.gate.wait(PATIENCE_S)
        self.send_response(404 if name == "gone" else 200)
        self.send_header("Content-Length", str(len(FILE) + (1 if name == "cut" else 0)))
        self.end_headers()
        self.wfile.write(FILE)

    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    _Pages.seen, _Pages.gate = [], threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        _Pages.gate.set()
        running.shutdown()
        thread.join(PATIENCE_S)


Fetch = Callable[..., bytes]


@pytest.fixture
def fetch(server: ThreadingHTTPServer) -> Fetch:
    """Fetches from the server, whatever address a name has."""

    def fetched(
        url: str, *, max_bytes: int = 10_000, addresses: Sequence[str] = (PUBLIC,), timeout_s: float = PATIENCE_S
    ) -> bytes:
        def connect(address: tuple[str, int], timeout: float) -> socket.socket:
            assert address == (addresses[0], 80)
            return socket.create_connection(("127.0.0.1", server.server_port), timeout)

        fetch = ImageFetcher(lambda: {HOST, OTHER}, timeout_s, lambda _host, _port: addresses, connect)
        return fetch(url, "a[0]", max_bytes)

    return fetched


def refusal(fetch: Fetch, url: str, **options: object) -> str:
    with pytest.raises(InvalidRequest) as refused:
        fetch(url, **options)
    assert refused.value.param == "a[0]"
    return refused.value.message


def test_a_file_of_a_listed_host_is_fetched_by_its_address_under_its_name(fetch: Fetch) -> None:
    assert fetch(f"http://{HOST}/cat.png?size=1#top") == FILE
    assert fetch(f"http://{HOST}") == FILE
    assert _Pages.seen == [f"{HOST}/cat.png?size=1", f"{HOST}/"]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://evil.example/a.png", "the host evil.example is not listed in server.image_hosts"),
        (f"http://{HOST}:8080/a.png", "without port and user"),
        (f"http://me:secret@{HOST}/a.png", "without port and user"),
        (f"ftp://{HOST}/a.png", "only http and https"),
        ("http://[::1", "it is no URL"),
        (f"http://{HOST}.evil.example/a.png", "is not listed"),
        ("http://127.0.0.1/a.png", "is not listed"),
        (f"http://{HOST}/gone", "answered 404"),
        (f"http://{HOST}/cut", "it ended before the whole file"),
        (f"http://{HOST}/to/http://evil.example/a.png", "the host evil.example is not listed"),
        (f"http://{HOST}/to/to/to/to/a", "more than 3 redirects"),
    ],
)
def test_what_may_not_be_fetched_is_refused_by_its_name(fetch: Fetch, url: str, problem: str) -> None:
    assert problem in refusal(fetch, url)


def test_redirects_among_listed_hosts_are_followed(fetch: Fetch) -> None:
    assert fetch(f"http://{HOST}/to/http://{OTHER}/cat.png") == FILE
    assert _Pages.seen[-1] == f"{OTHER}/cat.png"


def test_a_larger_file_is_not_read_to_its_end(fetch: Fetch) -> None:
    assert fetch(f"http://{HOST}/a", max_bytes=len(FILE)) == FILE
    assert "it has more than" in refusal(fetch, f"http://{HOST}/a", max_bytes=len(FILE) - 1)


def test_a_host_that_hangs_is_left_at_the_deadline(fetch: Fetch) -> None:
    assert "did not answer as it should" in refusal(fetch, f"http://{HOST}/hangs", timeout_s=0.05)


class _Dripping:
    """A host that goes on for ever: `first`, then byte by byte, over TLS if it has a
    context."""

    def __init__(self, context: ssl.SSLContext | None, first: bytes) -> None:
        self._first, self._context = first, context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def connect(self, _address: tuple[str, int], timeout: float) -> socket.socket:
        return socket.create_connection(self._listener.getsockname(), timeout)

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        with suppress(OSError):
            if self._context is not None:
                sock = self._context.wrap_socket(sock, server_side=True)
            sock.sendall(self._first)
            while not select.select([sock], [], [], 0.01)[0] or sock.recv(65536):
                sock.sendall(b"x")
        sock.close()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the fetch still holds its connection"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls"), {"host": f"DNS:{HOST}"})


@pytest.mark.parametrize(
    ("scheme", "is_tls", "first"),
    [
        ("http", False, b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"),
        ("http", False, b"HTTP/1.1 200 OK\r\n\r\n"),
        ("https", True, b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"),
        ("https", True, b"HTTP/1.1 200 OK\r\n\r\n"),
        ("https", True, b"HTTP/1.1 200 OK\r\nX: "),
        ("https", False, b"\x16\x03\x03\x40\x00"),
    ],
    ids=["body", "body-to-the-end", "tls-body", "tls-body-to-the-end", "tls-header", "tls-handshake"],
)
def test_a_host_that_drips_is_left_at_the_deadline(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, is_tls: bool, first: bytes
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "authority.crt"))
    host = _Dripping(server_context(certificates, "host") if is_tls else None, first)
    fetch = ImageFetcher(lambda: {HOST}, 0.3, lambda _host, _port: [PUBLIC], host.connect)
    with pytest.raises(InvalidRequest, match=r"did not answer as it should|ended before the whole file"):
        fetch(f"{scheme}://{HOST}/a", "a[0]", 100_000)
    host.close()


@pytest.mark.parametrize("addresses", [["127.0.0.1"], [PUBLIC, "10.0.0.1"], []])
def test_a_name_with_an_address_that_is_not_public_is_refused(fetch: Fetch, addresses: list[str]) -> None:
    assert "has an address that is not public" in refusal(fetch, f"http://{HOST}/a", addresses=addresses)
    assert not _Pages.seen


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
        "::1", "::", "fe80::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1", "2002:7f00:1::",
        "ff02::1", "64:ff9b:1::1", "fec0::1", "::ffff:0:127.0.0.1", "::127.0.0.1", "3fff::1", "5f00::1", "2001:db8::1",
        "2001:0:7f00:1::", "2002:808:808::1", "2001:20::1", "100::1", "fe80::1%eth0", "192.0.2.1", "198.18.0.1",
        "192.88.99.1", "255.255.255.255",
    ],
)  # fmt: skip
def test_addresses_of_this_machine_and_its_networks_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946", "2a00:1450::1", "2001:4860::8888"])
def test_other_addresses_are_public(address: str) -> None:
    assert is_public(address)
