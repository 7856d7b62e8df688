"""Random bytes, headers and lengths on real connections: no 5xx but 503, and every later request is answered."""

import logging
import random
import re
import socket

import pytest

from adapters.fake.options import FakeOptions, reply_with
from interfaces.http.front.connection_limits import ConnectionLimits
from tests.support.http.fuzz_requests import CHECK_EVERY, Fuzzer
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.patience import PATIENCE_S

NUM_CONNECTIONS = 300
REFUSED = {"400", "415", "421", "431"}
QUICK = ConnectionLimits(header_timeout_s=1, body_timeout_s=1, write_timeout_s=5)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKS = b'f\r\n{"prompt": "x",\r\n10\r\n"max_tokens": 1} \r\n0\r\nTrailer: 1\r\n\r\n'
SEEDS = (
    b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n",
    POST + b'Content-Length: 30\r\n\r\n{"prompt": "x","max_tokens":1}',
    POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS,
    b"POST /v1/cache/explain HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: Upgrade\r\nUpgrade: h\r\n\r\n",
)
INSERTS = (b"\r\n", b":", b" ", b"9" * 20, b"Content-Length: 5\r\n", b"x" * 40_000)


def spoiled(generator: random.Random) -> bytes:
    """One or more requests with bytes flipped, removed, doubled or put in."""
    data = bytearray(b"".join(generator.choices(SEEDS, k=generator.choice((1, 1, 2, 5)))))
    for _ in range(generator.choice((0, 1, 2, 8))):
        at = generator.randrange(len(data))
        match generator.randrange(5):
            case 0:
                data[at] = generator.randrange(256)
            case 1:
                del data[at : at + generator.choice((1, 4, 64))]
            case 2:
                data[at:at] = data[at : at + generator.choice((1, 16, 200))]
            case 3:
                data[at:at] = generator.randbytes(generator.choice((1, 8, 3_000)))
            case _:
                data[at:at] = generator.choice(INSERTS)
        data = data or bytearray(b"\r\n")
    return bytes(data)


def attack(service: FakeService, generator: random.Random) -> bytes:
    """What is answered until the server closes, or the client is tired of it."""
    received = b""
    with socket.create_connection(("127.0.0.1", service.server.port), timeout=PATIENCE_S) as client:
        try:
            data = spoiled(generator)
            cut = generator.randrange(len(data) + 1)
            client.sendall(data[:cut])
            client.sendall(data[cut:])
            if generator.random() < 0.9:
                client.shutdown(socket.SHUT_WR)
            else:
                client.settimeout(0.1)  # an idle connection may stay
            if generator.random() < 0.9:
                while piece := client.recv(65_536):
                    received += piece
        except OSError:
            pass
    return received


def test_random_bytes(caplog: pytest.LogCaptureFixture) -> None:
    generator = random.Random(8)
    with (
        fake_service(FakeOptions(reply=reply_with("ok")), connections=QUICK) as service,
        caplog.at_level(logging.ERROR),
    ):
        seen = set[bytes]()
        for number in range(NUM_CONNECTIONS):
            statuses = re.findall(rb"HTTP/1\.1 (\d{3}) ", attack(service, generator))
            assert not [status for status in statuses if status.startswith(b"5") and status != b"503"], number
            seen.update(statuses)
        assert seen >= {b"200", b"400", b"404", b"415", b"421"}
        service.client.close()
        assert not service.events.of("FaultObserved")
        server = service.server._server
        assert server is not None
        service.wait_until(lambda: not server.server_state.connections, "every connection to be gone")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_whatever_is_thrown_at_it_well_formed_requests_are_answered() -> None:
    """A little of what `tests.support.http.fuzz_requests` throws by the ten thousand."""
    with fake_service(FakeOptions(reply=reply_with("ok"))) as service:
        fuzzer = Fuzzer(service.base_url, seed=11)
        fuzzer.run(2 * CHECK_EVERY)
        for _ in range(8):  # a busy machine answers few in the time that a client of these takes
            if fuzzer.answers.keys() >= REFUSED:
                break
            fuzzer.run(CHECK_EVERY)
        assert fuzzer.answers.keys() >= REFUSED
        assert not service.events.of("FaultObserved")
