"""The limits of one client before its key is checked: bytes, time and connections."""

import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.byte_size import ByteSize
from domain.client import Client, KeyRing, key_digest
from interfaces.http.front.connection_limits import ConnectionLimits
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nX-Api-Key: k\r\n"
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
CLOSING = b"Host: localhost\r\nConnection: close\r\n"
BODY = b'{"prompt": "x"}'
QUICK = ConnectionLimits(header_timeout_s=1, body_timeout_s=0.3, write_timeout_s=0.3)
PATIENT = ServerSettings(port=0, max_body=ByteSize(num_bytes=100_000))


@contextmanager
def connected(service: FakeService, receive_buffer_bytes: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as client:
        if receive_buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", service.server.port))
        yield client


def rest_of(client: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    while data := client.recv(65_536):
        received += data
    return received


def flood(client: socket.socket, piece: bytes, max_bytes: int = 64 << 20) -> int:
    """Send until the server no longer takes it; how many bytes it took, the kernel's buffers included."""
    sent = 0
    try:
        while sent < max_bytes:
            sent += client.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return sent


def error_of(answer: bytes, status: int) -> Any:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 %d " % status), answer[:300]
    assert b"content-type: application/json" in lines
    assert b"connection: close" in lines
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error["code"]


@pytest.fixture(scope="module")
def patient() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("ok")), settings=PATIENT) as running:
        yield running


class TestBytes:
    def test_what_has_no_end_is_refused(self, patient: FakeService) -> None:
        """The kernel holds a few MiB on loopback; the rest is never taken. Everything else that may have no end:
        tests/unit/interfaces/http/test_connection.py."""
        with connected(patient) as client:
            client.sendall(HEAD + b"X-Endless: ")
            assert flood(client, b"y" * 65_536) < 32 << 20
        with connected(patient) as client:
            client.sendall(HEAD + b"X-Endless: " + b"y" * 131_072)
            assert error_of(rest_of(client), 431) == "headers_too_large"

    @pytest.mark.parametrize(
        ("head", "most", "status"),
        [
            (lambda count: (b"q" * count, b""), 8_192 - len(b"/v1/models?"), 414),
            (lambda count: (b"", b"X: y\r\n" * count), 98, 431),
            (lambda count: (b"", b"X: " + b"y" * count + b"\r\n"), 32_768 - len(CLOSING) - len(b"X: \r\n"), 431),
        ],
        ids=["target", "headers", "value"],
    )
    def test_a_head_may_be_as_large_as_documented(
        self, patient: FakeService, head: Callable[[int], tuple[bytes, bytes]], most: int, status: int
    ) -> None:
        for count, expected in ((most, 200), (most + 1, status)):
            query, fields = head(count)
            with connected(patient) as client:
                client.sendall(b"GET /v1/models?" + query + b" HTTP/1.1\r\n" + CLOSING + fields + b"\r\n")
                assert rest_of(client).startswith(b"HTTP/1.1 %d " % expected)

    def test_malformed_requests_get_the_shape_of_every_error(self, patient: FakeService) -> None:
        for request in (
            b"\x16\x03\x01 tls\r\n\r\n",
            b"GET\r\n\r\n",
            b"CONNECT a HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "GET /é HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
            HEAD + b"Content-Length: x\r\n\r\n",
            b"GET x y z\r\n",
        ):
            with connected(patient) as client:
                client.sendall(request)
                assert error_of(rest_of(client), 400) == "invalid_request"

    def test_no_key_no_body(self) -> None:
        """The key is looked at when the headers are there; what comes after is neither awaited nor kept."""
        settings = ServerSettings(port=0, api_key="k")
        with fake_service(settings=settings) as service, connected(service) as client:
            head = HEAD.replace(b"X-Api-Key: k\r\n", b"")
            client.sendall(head + CHUNKED)
            assert client.recv(65_536).startswith(b"HTTP/1.1 401 ")
            assert flood(client, b"10000\r\n" + b"x" * 65_536 + b"\r\n") < 32 << 20

    @pytest.mark.parametrize(
        "body",
        [b"Content-Length: 100000000000\r\n\r\n", CHUNKED + b"20000\r\n" + b"x" * 0x20000],
        ids=["announced", "chunked"],
    )
    def test_a_body_too_large_is_not_awaited(self, patient: FakeService, body: bytes) -> None:
        with connected(patient) as client:
            client.sendall(HEAD + body)
            assert client.recv(65_536).startswith(b"HTTP/1.1 413 ")

    def test_the_bodies_of_one_client_take_half_of_the_budget_at_most(self) -> None:
        """Counted until they are answered; a refusal has the shape of its dialect, and says when to come back."""
        gate, padding = Gate("decode", 1), b" " * 60_000
        keys = KeyRing([Client(name.decode(), key_digest(name)) for name in (b"k", b"other")])
        with fake_service(FakeOptions(reply=reply_with("ok"), hook=gate), keys=keys) as service:
            bodies = service.app.state.bodies
            bodies.max_bytes, whole = 200_000, bodies.max_bytes
            request = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (len(BODY) + 60_000) + BODY + padding
            with connected(service) as first, connected(service) as second:
                first.sendall(request)
                gate.wait_until_reached()
                assert bodies.held_bytes == len(BODY) + 60_000
                for path, code in ((b"/v1/completions", "bodies_full"), (b"/v1/messages", "overloaded_error")):
                    with connected(service) as client:
                        client.sendall(request.replace(b"/v1/completions", path))
                        head, _, body = rest_of(client).partition(b"\r\n\r\n")
                        assert head.startswith(b"HTTP/1.1 503 ")
                        assert b"\r\nretry-after: 1\r\n" in head.lower() + b"\r\n"
                        assert code in json.loads(body)["error"].values()
                second.sendall(request.replace(b"X-Api-Key: k", b"X-Api-Key: other"))
                service.wait_until(lambda: bodies.held_bytes == 2 * (len(BODY) + 60_000), "another client's body")
                gate.open()
                assert rest_of(first).startswith(b"HTTP/1.1 200 ")
                assert rest_of(second).startswith(b"HTTP/1.1 200 ")
            service.wait_until(lambda: bodies.held_bytes == 0, "nothing to be held")
            bodies.max_bytes = whole
            assert [event.reason for event in service.events.of("HttpRefused")] == ["bodies_full"] * 2

    def test_who_leaves_in_the_middle_of_a_body_holds_nothing(self, patient: FakeService) -> None:
        with connected(patient) as client:
            client.sendall(HEAD + b"Content-Length: 50000\r\n\r\n" + b" " * 30_000)
            patient.wait_until(lambda: patient.app.state.bodies.held_bytes == 30_000, "what came of the body")
        patient.wait_until(lambda: patient.app.state.bodies.held_bytes == 0, "nothing to be held")

    def test_a_request_that_does_not_wait_for_the_answer_before_it_ends_the_connection_after_that(self) -> None:
        gate = Gate("decode", 1)
        options = FakeOptions(reply=reply_with("ok"), hook=gate)
        with fake_service(options) as service, connected(service) as client:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)
            gate.wait_until_reached()
            client.sendall(GET * 1_000)
            service.wait_until(lambda: bool(service.events.of("HttpRefused")), "them to be refused")
            gate.open()
            answers = rest_of(client)
            assert answers.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answers.count(b"HTTP/1.1") == 1
            assert [event.reason for event in service.events.of("HttpRefused")] == ["pipelined"]


def test_a_client_that_leaves_with_requests_still_unread_cancels_the_one_that_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate = Gate("decode", 3)
    with caplog.at_level(logging.ERROR), fake_service(FakeOptions(eos_every=0, hook=gate)) as service:
        body = b'{"prompt": "x", "stream": true, "max_tokens": 30000}'
        with connected(service) as client:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + GET + GET)
            gate.wait_until_reached()
        service.wait_until(lambda: num_connections(service) == 0, "the connection to be gone")
        gate.open()
        service.wait_until_idle()
        assert [event.reason for event in service.events.of("RequestEnded")] == ["cancelled"]
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


class TestTime:
    """Of an answer; a request that does not come in time: tests/integration/http/dialects/test_http_dialects.py."""

    def test_a_client_that_never_reads_is_cut_off(self) -> None:
        options, settings = FakeOptions(eos_every=0), ServerSettings(port=0, keepalive_s=0.05)
        with (
            fake_service(options, settings=settings, connections=QUICK) as service,
            connected(service, 4_096) as client,
        ):
            many = b'{"prompt": "x", "stream": true, "max_tokens": 30000, "n": 8, "logprobs": 5}'
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(many) + many)
            await_cut(service)

    def test_a_closed_connection_that_nobody_reads_is_cut_off_too(self) -> None:
        models = FakeModels([f"model-{number}-{'x' * 500}" for number in range(20_000)])
        with fake_service(models=models, connections=QUICK) as service, connected(service, 4_096) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            await_cut(service)


def num_connections(service: FakeService) -> int:
    server = service.server._server
    assert server is not None
    return len(server.server_state.connections)


def await_cut(service: FakeService) -> None:
    """Waits until the client that does not read is cut off, by its event: a busy machine may see no connection
    before."""
    service.wait_until(lambda: bool(service.events.of("HttpRefused")), "the client to be given up")
    assert [event.reason for event in service.events.of("HttpRefused")] == ["write_timeout"]
    service.wait_until(lambda: num_connections(service) == 0, "the connection to be cut")


class TestConnections:
    def test_silent_connections_keep_nobody_out(self) -> None:
        """530 of them, without a key, made 385 of 387 requests of others fail."""
        with fake_service(connections=ConnectionLimits(max_connections=8)) as service, ExitStack() as silent:
            for sent in (b"", HEAD) * 30:
                client = silent.enter_context(connected(service))
                with suppress(OSError):  # it may have given way
                    client.sendall(sent)
            for _ in range(20):
                with connected(service) as client:
                    client.sendall(GET.replace(b"/health/live", b"/v1/models"))
                    assert client.recv(65_536).startswith(b"HTTP/1.1 200 ")

    def test_a_server_that_answers_on_every_connection_refuses_all_but_health_checks(self) -> None:
        gate = Gate("decode", 1)
        options, limits = FakeOptions(eos_every=0, hook=gate), ConnectionLimits(max_connections=1)
        with fake_service(options, connections=limits) as service, connected(service) as streaming:
            body = b'{"prompt": "x", "stream": true, "max_tokens": 30000}'
            streaming.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            gate.wait_until_reached()
            with connected(service) as client:
                client.sendall(GET.replace(b"/health/live", b"/v1/models"))
                answer = rest_of(client)
                assert error_of(answer, 503) == "too_many_connections"
                assert b"retry-after: 1\r\n" in answer.lower()
            with connected(service) as client:
                client.sendall(GET.replace(b"/health/live", b"/v1/messages"))
                assert b'"type":"overloaded_error"' in rest_of(client)
            assert service.client.get("/health/live").status_code == 200
            gate.open()
            streaming.close()
            service.client.close()
            service.wait_until(lambda: num_connections(service) == 0, "them to be gone")
            with connected(service) as client:
                client.sendall(GET.replace(b"/health/live", b"/v1/models"))
                assert client.recv(65_536).startswith(b"HTTP/1.1 200 ")
