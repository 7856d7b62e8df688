"""A second dialect beside OpenAI's: its own routes, headers and errors. Answers: the tests of each dialect."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.byte_size import ByteSize
from interfaces.http.answering.dialect import Dialects
from interfaces.http.dialects import OPENAI
from interfaces.http.front.connection_limits import ConnectionLimits
from tests.support.http.raw_client import RawClient
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.http.servers.telegraph import PATH, TELEGRAPH
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate

BOTH = Dialects([OPENAI, TELEGRAPH])
KEY = "k"
WITH_KEY = {"x-api-key": KEY}
SETTINGS = ServerSettings(port=0, api_key=KEY, max_body=ByteSize(num_bytes=10_000))
JSON = {"content-type": "application/json", **WITH_KEY}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("fine"), eos_every=0), settings=SETTINGS, dialects=BOTH) as running:
        yield running


def ask(service: FakeService, **body: Any) -> httpx.Response:
    return service.client.post(PATH, json={"telegram": "stop", **body}, headers=WITH_KEY)


def events(transcript: str) -> list[tuple[str, str]]:
    """Names and texts, after checking that the events are numbered from 1 without a gap."""
    blocks = [block.split("\n") for block in transcript.split("\n\n")[:-1]]
    payloads = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
    assert [number for number, _ in payloads] == list(range(1, len(blocks) + 1))
    return [(name.removeprefix("event: "), text) for (name, _), (_, text) in zip(blocks, payloads, strict=True)]


class TestAnswers:
    def test_headers_reach_the_mapping(self, service: FakeService) -> None:
        response = service.client.post(
            PATH, json={"telegram": "stop", "stream": True}, headers={**WITH_KEY, "X-Station": "far"}
        )
        assert ("admitted", "0:7") in events(response.text)

    def test_its_other_routes_are_there(self, service: FakeService) -> None:
        assert service.client.get("/telegraph/operator", headers=WITH_KEY).text == "fake-attention"


def huge(size: int) -> bytes:
    return json.dumps({"telegram": "x" * size}).encode()


ERRORS: list[tuple[int, str, str, dict[str, Any]]] = [
    (400, "invalid_request", "POST", {"content": b"{", "headers": JSON}),
    (400, "invalid_request", "POST", {"content": b"", "headers": JSON}),
    (400, "invalid_request", "POST", {"json": {}, "headers": WITH_KEY}),
    (400, "invalid_request", "POST", {"json": {"telegram": "x", "urgent": True}, "headers": WITH_KEY}),
    (401, "invalid_api_key", "POST", {"json": {"telegram": "x"}}),
    (403, "origin_not_allowed", "POST", {"json": {"telegram": "x"}, "headers": {"origin": "http://evil.example"}}),
    (404, "model_not_found", "POST", {"json": {"telegram": "x", "prompt": "x", "model": "gpt-9"}, "headers": WITH_KEY}),
    (405, "method_not_allowed", "DELETE", {"headers": WITH_KEY}),
    (413, "body_too_large", "POST", {"content": huge(20_000), "headers": JSON}),
    (415, "unsupported_media_type", "POST", {"content": b"{}", "headers": {"content-type": "text/plain"}}),
    (421, "host_not_allowed", "POST", {"json": {"telegram": "x"}, "headers": {"host": "evil.example"}}),
]


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "code", "method", "request_"), ERRORS, ids=[f"{e[0]}-{number}" for number, e in enumerate(ERRORS)]
    )
    def test_have_the_shape_of_the_dialect_whose_path_was_asked(
        self, service: FakeService, status: int, code: str, method: str, request_: dict[str, Any]
    ) -> None:
        ours = service.client.request(method, PATH, **request_)
        assert ours.status_code == status, ours.text
        assert ours.headers["content-type"] == "application/json"
        assert set(ours.json()) == {"wrong", "why"}
        assert ours.json()["wrong"] == code
        theirs = service.client.request(method, "/v1/completions", **request_)
        assert theirs.status_code == status
        assert theirs.json()["error"]["code"] == code

    @pytest.mark.parametrize(
        ("path", "is_ours"),
        [
            ("/telegraph", True),
            ("/telegraph/nowhere", True),
            ("/telegraph/", True),
            ("/telegraphs", False),
            ("/v1/telegraph", False),
            ("/nowhere", False),
        ],
    )
    def test_an_unknown_path_is_the_owners_or_openais(self, service: FakeService, path: str, is_ours: bool) -> None:
        response = service.client.get(path, headers=WITH_KEY)
        assert response.status_code == 404
        assert set(response.json()) == ({"wrong", "why"} if is_ours else {"error"})

    def test_fields_have_the_clients_names(self, service: FakeService) -> None:
        response = ask(service, words=0)
        assert response.status_code == 400
        assert response.json()["why"].startswith("words ")

    @pytest.mark.parametrize(
        ("head", "status"),
        [
            (b"POST %s HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
            (b"POST %s?a=b HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
            (b"POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n", 400),
            (b"POST %s?" + b"q" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 414),
        ],
        ids=["headers", "length", "chunk", "target"],
    )
    def test_what_a_connection_refuses(self, service: FakeService, head: bytes, status: int) -> None:
        ours = refused(service, head.replace(b"%s", PATH.encode()))
        theirs = refused(service, head.replace(b"%s", b"/v1/completions"))
        for head_, _ in (ours, theirs):
            assert head_.startswith(f"HTTP/1.1 {status} ")
        assert set(ours[1]) == {"wrong", "why"}
        assert set(theirs[1]) == {"error"}

    def test_what_comes_too_late(self) -> None:
        quick = ConnectionLimits(body_timeout_s=0.1)
        with fake_service(connections=quick, dialects=BOTH) as service:
            post = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
            assert set(refused(service, post.replace(b"%s", PATH.encode()))[1]) == {"wrong", "why"}
            assert set(refused(service, post.replace(b"%s", b"/v1/completions"))[1]) == {"error"}

    def test_what_is_no_request_is_not_the_last_ones_dialect(self) -> None:
        with (
            fake_service(dialects=BOTH) as service,
            socket.create_connection(("127.0.0.1", service.server.port), timeout=PATIENCE_S) as client,
        ):
            client.sendall(b"GET /telegraph HTTP/1.1\r\nHost: localhost\r\n\r\n")
            read_until(client, b'"wrong":"not_found"')
            client.sendall(b"\x16\x03 nonsense\r\n\r\n")
            read_until(client, b'"error":{')

    def test_a_server_without_a_place_left(self) -> None:
        gate, limits = Gate("decode", 1), ConnectionLimits(max_connections=1)
        with fake_service(FakeOptions(eos_every=0, hook=gate), connections=limits, dialects=BOTH) as service:
            client = RawClient(service.base_url, PATH, {"telegram": "stop", "stream": True})
            gate.wait_until_reached()
            head, body = refused(service, b"GET /telegraph HTTP/1.1\r\nHost: localhost\r\n\r\n")
            gate.open()
            client.leave()
        assert head.startswith("HTTP/1.1 503 ")
        assert body["wrong"] == "too_many_connections"


def refused(service: FakeService, request: bytes) -> tuple[str, Any]:
    """Head and body of the answer to raw bytes, when the server has closed the connection."""
    with socket.create_connection(("127.0.0.1", service.server.port), timeout=PATIENCE_S) as client:
        client.sendall(request)
        received = b""
        while data := client.recv(65_536):
            received += data
    head, _, body = received.partition(b"\r\n\r\n")
    return head.decode(), json.loads(body)


def read_until(client: socket.socket, marker: bytes) -> None:
    received = b""
    while marker not in received:
        data = client.recv(65_536)
        assert data, received
        received += data


class TestBesideIt:
    def test_the_document_has_it(self, service: FakeService) -> None:
        document = service.client.get("/schema/openapi.json", headers=WITH_KEY).json()
        operation = document["paths"][PATH]["post"]
        assert operation["operationId"] == "sendTelegram"
        assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/Telegram")
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
        assert operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"].endswith("/Wrong")
