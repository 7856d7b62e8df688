"""Errors that are raised outside any route have the shape of the dialect whose path was requested."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.byte_size import ByteSize
from interfaces.http.front.connection_limits import ConnectionLimits
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.patience import PATIENCE_S

ANTHROPIC, OPENAI = "/v1/messages", "/v1/completions"
KEY = "k"
WITH_KEY = {"x-api-key": KEY}
SETTINGS = ServerSettings(port=0, api_key=KEY, max_body=ByteSize(num_bytes=10_000))
JSON = {"content-type": "application/json", **WITH_KEY}
BODY = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
HUGE = json.dumps({**BODY, "padding": "x" * 20_000}).encode()
QUICK = ConnectionLimits(body_timeout_s=0.1)


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("fine")), settings=SETTINGS) as running:
        yield running


def is_anthropics(answer: Any) -> bool:
    if answer.get("type") == "error":
        assert set(answer["error"]) == {"type", "message"}
        return True
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return False


ERRORS: list[tuple[int, str, str, str, dict[str, Any]]] = [
    (400, "invalid_request_error", "invalid_request", "POST", {"content": b"{", "headers": JSON}),
    (400, "invalid_request_error", "invalid_request", "POST", {"content": b"", "headers": JSON}),
    (400, "invalid_request_error", "invalid_request", "POST", {"json": {}, "headers": WITH_KEY}),
    (401, "authentication_error", "invalid_api_key", "POST", {"json": BODY}),
    (403, "permission_error", "origin_not_allowed", "POST", {"json": BODY, "headers": {"origin": "http://a.example"}}),
    (404, "not_found_error", "model_not_found", "POST", {"json": {**BODY, "model": "gpt-9"}, "headers": WITH_KEY}),
    (405, "invalid_request_error", "method_not_allowed", "DELETE", {"headers": WITH_KEY}),
    (413, "request_too_large", "body_too_large", "POST", {"content": HUGE, "headers": JSON}),
    (415, "invalid_request_error", "unsupported_media_type", "POST", {"content": b"{}"}),
    (421, "invalid_request_error", "host_not_allowed", "POST", {"json": BODY, "headers": {"host": "evil.example"}}),
]


@pytest.mark.parametrize(("status", "type", "code", "method", "request_"), ERRORS, ids=lambda value: str(value)[:30])
def test_each_status(
    service: FakeService, status: int, type: str, code: str, method: str, request_: dict[str, Any]
) -> None:
    theirs = service.client.request(method, ANTHROPIC, **request_)
    assert (theirs.status_code, theirs.headers["content-type"]) == (status, "application/json"), theirs.text
    assert is_anthropics(theirs.json())
    assert theirs.json()["error"]["type"] == type
    openais = service.client.request(method, OPENAI, **request_)
    assert openais.status_code == status
    assert not is_anthropics(openais.json())
    assert openais.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("path", "is_owned"),
    [(f"{ANTHROPIC}/nowhere", True), (f"{ANTHROPIC}s", False), (f"/v2{ANTHROPIC}", False), ("/nowhere", False)],
)
def test_an_unknown_path_belongs_to_the_dialect_above_it_or_to_openai(
    service: FakeService, path: str, is_owned: bool
) -> None:
    response = service.client.get(path, headers=WITH_KEY)
    assert response.status_code == 404
    assert is_anthropics(response.json()) is is_owned


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", '"messages": [{"role": "user", "content": "CUT"}]'),
        ("/v1/completions", '"prompt": "CUT"'),
        ("/v1/responses", '"input": [{"role": "user", "content": "CUT"}]'),
        ("/v1/messages", '"max_tokens": 9, "messages": [{"role": "user", "content": "CUT"}]'),
        ("/v1/messages/count_tokens", '"messages": [{"role": "user", "content": "CUT"}]'),
        ("/api/chat", '"stream": false, "messages": [{"role": "user", "content": "CUT"}]'),
        ("/api/generate", '"stream": false, "prompt": "CUT"'),
        ("/tokenize", '"add_special_tokens": false, "prompt": "CUT"'),
    ],
)
def test_half_a_character_is_replaced_in_every_dialect(service: FakeService, path: str, prompt: str) -> None:
    for half in (r"\ud83d", r"\ude00"):
        body = f"{{{prompt.replace('CUT', f'a{half}b')}}}".encode()
        answer = service.client.post(path, content=body, headers=JSON)
        assert answer.status_code == 200, answer.text
    broken = f"{{{prompt}}}".encode().replace(b"CUT", b"\xff" + rb"\ud83d")
    assert service.client.post(path, content=broken, headers=JSON).status_code == 400


HOST = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST %s" + HOST + b"A: b\r\n" * 200 + b"\r\n", 431),
        (b"POST %s?a=b" + HOST + b"Content-Length: x\r\n\r\n", 400),
        (b"POST %s" + HOST + b"Transfer-Encoding: chunked\r\n\r\nno size\r\n", 400),
        (b"POST %s?" + b"q" * 9_000 + HOST + b"\r\n", 414),
        (b"POST %s" + HOST + b"Content-Type: application/json\r\nX-Api-Key: k\r\nContent-Length: 9\r\n\r\n", 408),
    ],
    ids=["headers", "length", "chunk", "target", "time"],
)
def test_what_a_connection_refuses(request_: bytes, status: int) -> None:
    with fake_service(settings=SETTINGS, connections=QUICK) as service:
        for path, is_owned in ((ANTHROPIC, True), (OPENAI, False)):
            head, body = refused(service, request_.replace(b"%s", path.encode()))
            assert head.startswith(f"HTTP/1.1 {status} ")
            assert is_anthropics(body) is is_owned


def test_what_is_no_request_is_not_the_last_ones_dialect(service: FakeService) -> None:
    with socket.create_connection(("127.0.0.1", service.server.port), timeout=PATIENCE_S) as client:
        client.sendall(b"GET /v1/messages/x HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: k\r\n\r\n")
        read_until(client, b'"type":"not_found_error"')
        client.sendall(b"\x16\x03 nonsense\r\n\r\n")
        read_until(client, b'"code":"invalid_request"')


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
