"""The ways in which requests and answers travel: HEAD, HTTP/1.0 and bodies in gzip."""

import gzip
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.byte_size import ByteSize
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.patience import PATIENCE_S

COMPLETIONS = "/v1/completions"
ZIPPED = {"content-type": "application/json", "content-encoding": "gzip"}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    settings = ServerSettings(port=0, max_body=ByteSize(num_bytes=1_000_000))
    with fake_service(FakeOptions(reply=reply_with("fine")), settings=settings) as running:
        yield running


def exchange(service: FakeService, request: bytes) -> bytes:
    """All that the server sends until it closes the connection."""
    address = urlsplit(service.base_url)
    with socket.create_connection((address.hostname, address.port), PATIENCE_S) as connection:
        connection.sendall(request)
        received = b""
        while data := connection.recv(65_536):
            received += data
    return received


def test_head_answers_as_get_without_the_body(service: FakeService) -> None:
    paths = {route.path for route in service.app.routes if "GET" in getattr(route, "methods", ())}
    paths = {path for path in paths if "{" not in path} | {"/v1/models/fake-attention", "/v1/models/nobody"}
    assert {"/", "/chat", "/health", "/v1/models", "/api/tags", "/api/version"} <= paths
    for path in sorted(paths):
        got, head = service.client.get(path), service.client.head(path)
        assert (head.status_code, head.headers["content-type"]) == (got.status_code, got.headers["content-type"]), path
        assert "content-length" in head.headers, path
        assert head.content == b""
    assert service.client.head(COMPLETIONS).status_code == 405


@pytest.mark.parametrize("is_streamed", [True, False])
def test_an_answer_to_http_1_0_ends_with_the_connection_and_has_no_chunks(
    service: FakeService, is_streamed: bool
) -> None:
    body = json.dumps({"prompt": "x", "stream": is_streamed}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    fields, _, answer = exchange(service, head.encode() + body).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in fields.lower()
    assert b" 200 " in fields.splitlines()[0]
    if is_streamed:
        assert answer.startswith(b"data: {")
        assert answer.endswith(b"\n\ndata: [DONE]\n\n")
    else:
        assert b"content-length: %d\r\n" % len(answer) in fields
        assert json.loads(answer)["choices"][0]["text"] == "fine"


def zipped(service: FakeService, body: bytes, encoding: str = "gzip") -> Any:
    return service.client.post(COMPLETIONS, content=body, headers={**ZIPPED, "content-encoding": encoding})


def test_a_body_in_gzip_is_read(service: FakeService) -> None:
    plain = b" " * 900_000 + json.dumps({"prompt": "x" * 9_000, "max_tokens": 4}).encode()
    for encoding in ("gzip", "GZip", "x-gzip"):
        answer = zipped(service, gzip.compress(plain), encoding)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] == 9_000
    assert zipped(service, plain, "identity").status_code == 200


def test_a_body_in_gzip_is_bounded_by_what_it_becomes(service: FakeService) -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    assert len(bomb) < 1_000_000
    assert zipped(service, bomb).status_code == 413


@pytest.mark.parametrize(
    "body",
    [b"{}", gzip.compress(b'{"prompt": "x"}')[:-1], gzip.compress(b'{"prompt": "x"}') + b"more"],
    ids=["plain", "cut", "more"],
)
def test_a_body_that_is_no_gzip_is_malformed(service: FakeService, body: bytes) -> None:
    answer = zipped(service, body)
    assert answer.status_code == 400
    assert "gzip" in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["zstd", "br", "gzip, gzip"])
def test_other_encodings_are_refused_by_name(service: FakeService, encoding: str) -> None:
    answer = zipped(service, b"{}", encoding)
    assert answer.status_code == 415
    assert answer.json()["error"]["code"] == "unsupported_media_type"
    assert f"'{encoding}'" in answer.json()["error"]["message"]
    assert "gzip" in answer.json()["error"]["message"]
