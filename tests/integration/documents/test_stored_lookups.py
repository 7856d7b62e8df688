"""What a small request has looked up, and what a client that does not read holds: bounded in bytes and values."""

import json
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions, reply_with
from adapters.sqlite.document_store import SqliteDocumentStore
from application.settings import ServerSettings
from domain.byte_size import ByteSize
from domain.request.document import Document, DocumentKey
from interfaces.http.incoming import json_body, request_context
from interfaces.http.responses import stored
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.telemetry.recording import RecordingEvents

PATH = "/v1/responses"
LARGE = {"type": "web_search_call", "action": "x" * 10_000}
MANY = {"type": "web_search_call", "action": [[] for _ in range(500)]}


class CountingStore(SqliteDocumentStore):
    """Counts what is read. `num_bytes`: of bodies."""

    def __init__(self) -> None:
        super().__init__(None, 0, RecordingEvents(), FakeClock())
        self.num_bytes = 0
        self.kinds: list[str] = []

    def get(self, keys: Sequence[DocumentKey]) -> Sequence[Document | None]:
        found = super().get(keys)
        self.num_bytes += sum(len(one.body) for one in found if one is not None)
        self.kinds += [key.kind for key in keys]
        return found


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def service(store: CountingStore) -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("Hi")), documents=store) as running:
        yield running


def create(service: FakeService, *items: Any, **fields: Any) -> dict[str, Any]:
    response = service.client.post(PATH, json={"input": [*items, {"role": "user", "content": "hi"}], **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(service: FakeService, **body: Any) -> dict[str, Any]:
    response = service.client.post(PATH, json={"input": "hi", **body})
    assert response.status_code == 400, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


def test_a_reference_reads_the_item_that_it_names_and_nothing_of_its_response(
    service: FakeService, store: CountingStore
) -> None:
    ids = [create(service, LARGE)["output"][0]["id"] for _ in range(5)]
    store.num_bytes, store.kinds = 0, []
    create(service, *({"type": "item_reference", "id": id} for id in ids * 20))
    assert set(store.kinds) == {"output_item"}
    assert len(store.kinds) == len(ids)
    assert store.num_bytes < 1_000 * len(ids)


def test_a_conversation_is_read_as_far_as_a_body_may_be_long(
    service: FakeService, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MAX_BYTES", 35_000)
    id = create(service, LARGE)["id"]
    for _ in range(2):
        id = create(service, LARGE, previous_response_id=id)["id"]
    last = create(service, LARGE, previous_response_id=id)["id"]
    store.num_bytes = 0
    error = refused(service, previous_response_id=last)
    assert (error["param"], store.num_bytes < 50_000) == ("previous_response_id", True)
    assert "MiB" in error["message"]
    listed = service.client.get(f"{PATH}/{last}/input_items")
    assert (listed.status_code, listed.json()["error"]["param"]) == (400, "response_id")
    assert service.client.get(f"{PATH}/{last}").status_code == 200
    assert service.client.get(f"{PATH}/{id}/input_items", params={"limit": 2}).json()["has_more"]


def test_values_count_as_in_a_body(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    id = create(service, MANY)["id"]
    id = create(service, MANY, previous_response_id=id)["id"]
    monkeypatch.setattr(stored, "MAX_NODES", 500 * json_body.CONTAINER_NODES + 2_000)
    error = refused(service, previous_response_id=id)
    assert error["param"] == "previous_response_id"
    assert "values" in error["message"]


def test_references_and_a_conversation_share_what_one_request_may_look_up(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create(service, LARGE)
    item = first["output"][0]["id"]
    monkeypatch.setattr(stored, "MAX_BYTES", 10_400)
    reference = {"type": "item_reference", "id": item}
    create(service, reference)
    create(service, previous_response_id=first["id"])
    error = refused(service, previous_response_id=first["id"], input=[reference])
    assert error["param"] == "input[0].id"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_clients_that_do_not_read_hold_their_share_of_bodies_and_no_more(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A budget of 24 MB, half of it for one address: two answers of 5 MB wait for clients that take nothing."""
    monkeypatch.setattr(request_context, "MIN_BUDGET_BYTES", 24_000_000)
    settings = ServerSettings(port=0, max_body=ByteSize(num_bytes=5_999_999))
    with fake_service(FakeOptions(reply=reply_with("Hi")), settings=settings) as service:
        echoed = {"input": "hi", "tools": [{"type": "web_search", "x": "y" * 5_000_000}]}
        id = create(service, tools=echoed["tools"])["id"]
        path, body = (f"{PATH}/{id}", b"") if method == "GET" else (PATH, json.dumps(echoed).encode())

        def ask() -> httpx.Response:
            return service.client.request(method, path, content=body, headers={"content-type": "application/json"})

        assert [ask().status_code for _ in range(5)] == [200] * 5
        stuck = [ask_and_read_no_more_than_the_status(service, method, path, body) for _ in range(2)]
        assert ask().json()["error"]["code"] == "bodies_full"
        for one in stuck:
            one.close()
        service.wait_until(lambda: ask().status_code == 200, "their share is given back")
        assert ask().json()["tools"] == echoed["tools"]


def ask_and_read_no_more_than_the_status(service: FakeService, method: str, path: str, body: bytes) -> socket.socket:
    host, port = service.base_url.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((host, int(port)))
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    made.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert made.recv(12, socket.MSG_WAITALL) == b"HTTP/1.1 200"
    return made
