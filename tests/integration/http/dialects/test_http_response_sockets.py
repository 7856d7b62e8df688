"""WebSockets at /v1/responses over a real socket, on the toy engine."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from socket import SHUT_RDWR, create_connection
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame
from websockets.sync.client import ClientConnection, connect

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.byte_size import ByteSize
from domain.client import Client
from interfaces.http.front.connection_limits import ConnectionLimits
from interfaces.http.front.socket_connection import BoundedSocket
from tests.support.http.official import message_problem
from tests.support.http.servers.fake_service import FakeService, fake_service, headers, keyed_service
from tests.support.patience import PATIENCE_S

PATH = "/v1/responses"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("Hé!"), context_length=4000)) as running:
        yield running


@contextmanager
def socket_of(service: FakeService, **more: Any) -> Iterator[ClientConnection]:
    url = f"{service.base_url.replace('http', 'ws', 1)}{PATH}"
    with connect(url, proxy=None, open_timeout=PATIENCE_S, close_timeout=PATIENCE_S, **more) as socket:
        yield socket


def send(socket: ClientConnection, **body: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "input": "Hi", "max_output_tokens": 20, **body}))


def read(socket: ClientConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(socket.recv(PATIENCE_S))
    assert message_problem(event) == ""
    return event


def told(socket: ClientConnection, **body: Any) -> list[dict[str, Any]]:
    """The events of an answer, up to the last."""
    send(socket, **body)
    return rest(socket)


def rest(socket: ClientConnection) -> list[dict[str, Any]]:
    events = [read(socket)]
    while events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
        events.append(read(socket))
    return events


def answered(socket: ClientConnection, **body: Any) -> dict[str, Any]:
    last = told(socket, **body)[-1]
    assert last["type"] in ("response.completed", "response.incomplete"), last
    response: dict[str, Any] = last["response"]
    return response


def refused(socket: ClientConnection, **body: Any) -> tuple[int, str, str | None]:
    (event,) = told(socket, **body)
    assert event["type"] == "error", event
    return event["status"], event["error"]["code"], event["error"]["param"]


def test_the_events_are_those_of_the_stream(service: FakeService) -> None:
    body = {"input": "Hi", "stream": True, "max_output_tokens": 20, "store": False}
    lines = service.client.post(PATH, json=body).text.splitlines()
    streamed = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    with socket_of(service) as socket:
        events = told(socket, store=False)
    assert [event["type"] for event in events] == [event["type"] for event in streamed]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"][0]["content"] == streamed[-1]["response"]["output"][0]["content"]


def test_messages_are_answered_one_after_another(service: FakeService) -> None:
    with socket_of(service) as socket:
        send(socket, input="first", metadata={"n": "1"})
        send(socket, input="second", metadata={"n": "2"})
        first, second = rest(socket), rest(socket)
    for number, events in (("1", first), ("2", second)):
        assert {event["response"]["metadata"]["n"] for event in events if "response" in event} == {number}


def test_a_conversation_goes_on_from_a_response_that_is_not_stored(service: FakeService) -> None:
    with socket_of(service) as socket:
        first = answered(socket, input="I am Alice.", store=False)
        second = answered(socket, input="Who am I?", store=False, previous_response_id=first["id"])
        third = answered(socket, input="Who?", store=False, previous_response_id=second["id"])
        alone = answered(socket, input="Who?", store=False)
        # only the last one is kept
        assert refused(socket, previous_response_id=third["id"])[1] == "previous_response_not_found"
    used = [one["usage"]["input_tokens"] for one in (first, second, third, alone)]
    assert used[0] < used[1] < used[2]
    assert used[2] > used[3]
    with socket_of(service) as other:
        missing = refused(other, previous_response_id=first["id"])
        assert missing == (400, "previous_response_not_found", "previous_response_id")
        assert answered(other, store=False)
    service.wait_until(lambda: service.app.state.bodies.held_bytes == 0, "what was kept to be released")


def test_a_stored_response_is_found_by_any_connection(service: FakeService) -> None:
    with socket_of(service) as socket:
        first = answered(socket)
    assert service.client.get(f"{PATH}/{first['id']}").json()["output"] == first["output"]
    with socket_of(service) as socket:
        assert answered(socket, previous_response_id=first["id"])["previous_response_id"] == first["id"]


def test_a_continuation_that_fails_makes_its_response_forgotten(service: FakeService) -> None:
    result = {"type": "function_call_output", "call_id": "call_nobody", "output": "?"}
    with socket_of(service) as socket:
        first = answered(socket, store=False)
        assert refused(socket, temperature=99) == (400, "invalid_request", "temperature")  # another conversation
        failed = refused(socket, input=[result], previous_response_id=first["id"], store=False)
        assert failed == (400, "invalid_request", "input[0].call_id")
        assert refused(socket, previous_response_id=first["id"])[1] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("no JSON", None),
        ('{"type": "response.cancel"}', "type"),
        ('{"type": "response.create", "input": "Hi", "generate": false}', "generate"),
        ('{"type": "response.create", "input": "Hi", "stream_id": "a"}', "stream_id"),
        ('{"type": "response.create", "input": "Hi", "background": true}', "background"),
        ('{"type": "response.create"}', "input"),
        (b"\xff\xfe", None),
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_goes_on(
    service: FakeService, message: str | bytes, param: str | None
) -> None:
    with socket_of(service) as socket:
        socket.send(message)
        event = read(socket)
        assert (event["type"], event["status"], event["error"]["param"]) == ("error", 400, param)
        assert answered(socket)


def test_a_client_that_disconnects_cancels_its_answer() -> None:
    with fake_service(FakeOptions(eos_every=0, context_length=100_000)) as service, socket_of(service) as socket:
        send(socket, max_output_tokens=50_000)
        assert read(socket)["type"] == "response.created"
        assert service.requests.num_open == 1
        socket.socket.shutdown(SHUT_RDWR)
        service.wait_until_idle()


@pytest.mark.parametrize(
    ("host", "sent", "status"),
    [
        ("127.0.0.1", {"Origin": "http://evil.example"}, 403),
        ("127.0.0.1", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("evil.example", {}, 421),
    ],
)
def test_the_guard_refuses_handshakes_as_requests(
    service: FakeService, host: str, sent: dict[str, str], status: int
) -> None:
    url = f"ws://{host}:{service.server.port}{PATH}"
    with pytest.raises(InvalidStatus) as error:
        connect(url, proxy=None, additional_headers=sent, address=("127.0.0.1", service.server.port))
    assert error.value.response.status_code == status
    assert json.loads(error.value.response.body or b"")["error"]["code"] in ("origin_not_allowed", "host_not_allowed")


def test_an_own_origin_is_no_foreign_one(service: FakeService) -> None:
    with socket_of(service, origin=service.base_url) as socket:
        assert answered(socket)


def test_the_handshake_needs_a_key_and_each_message_counts() -> None:
    with keyed_service(Client("alice", requests_per_minute=2), Client("bob")) as service:
        for sent in ({}, {"authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused_, socket_of(service, additional_headers=sent):
                pass
            assert refused_.value.response.status_code == 401
        with socket_of(service, additional_headers=headers("alice")) as socket:
            assert answered(socket)["id"] != answered(socket)["id"]
            assert refused(socket)[0] == 429
        with socket_of(service, additional_headers=headers("bob")) as socket:
            assert answered(socket)


def test_a_message_is_bounded_as_a_body() -> None:
    settings = ServerSettings(port=0, max_body=ByteSize(num_bytes=100_000))
    with fake_service(FakeOptions(context_length=4000), settings=settings) as service, socket_of(service) as socket:
        assert answered(socket, metadata={"a": "x" * 500})
        with pytest.raises(ConnectionClosed) as closed:
            told(socket, metadata={"a": "x" * 200_000})
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        service.wait_until(lambda: service.app.state.bodies.held_bytes == 0, "nothing to be held")


def test_a_message_that_does_not_arrive_is_not_waited_for() -> None:
    with fake_service(connections=ConnectionLimits(body_timeout_s=0.1)) as service, socket_of(service) as socket:
        assert answered(socket)
        socket.socket.sendall(b"\x81\xfe\x03\xe8" + bytes(4) + b"{")  # a byte of a message of a thousand
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
        service.wait_until(lambda: service.app.state.bodies.held_bytes == 0, "nothing to be held")


def test_pongs_that_a_client_does_not_read_are_not_kept(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    unread = list[int]()
    answer = BoundedSocket.handle_ping

    def watched(connection: BoundedSocket) -> None:
        answer(connection)
        unread.append(connection.transport.get_write_buffer_size())

    monkeypatch.setattr(BoundedSocket, "handle_ping", watched)
    ping = b"\x89\xfd" + bytes(4) + b"x" * 125
    url = httpx.URL(service.base_url)
    with create_connection((url.host, url.port or 0), PATIENCE_S) as raw:
        head = f"GET {PATH} HTTP/1.1\r\nHost: {url.host}:{url.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        raw.sendall(f"{head}Sec-WebSocket-Key: {'A' * 22}==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 101")
        for _ in range(100):
            raw.sendall(ping * 1000)
        service.wait_until(lambda: len(unread) == 100_000, "all pings to arrive")
    assert 0 < max(unread) < 1_000_000


def test_fragments_are_not_kept_apart(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    apart = list[int]()
    take = BoundedSocket.handle_cont

    def watched(connection: BoundedSocket, event: Frame) -> None:
        apart.append(len(connection.frames))
        take(connection, event)

    monkeypatch.setattr(BoundedSocket, "handle_cont", watched)
    message = json.dumps({"type": "response.create", "input": "Hé" * 200, "max_output_tokens": 20}, ensure_ascii=False)
    encoded = message.encode()
    with socket_of(service) as socket:
        for fragments in (message, (encoded[at : at + 1] for at in range(len(encoded)))):
            socket.send(fragments)
            assert rest(socket)[-1]["type"] in ("response.completed", "response.incomplete")
    assert len(apart) > 500
    assert max(apart) == 1


def test_an_idle_connection_gives_its_slot_to_a_new_one() -> None:
    limits = ConnectionLimits(max_connections=1)
    with fake_service(connections=limits) as service, socket_of(service) as idle, socket_of(service) as socket:
        assert answered(socket)
        with pytest.raises(ConnectionClosed):
            idle.recv(PATIENCE_S)


def test_a_server_that_stops_ends_the_answer_first() -> None:
    with fake_service(FakeOptions(eos_every=0, context_length=4000)) as service, socket_of(service) as socket:
        send(socket, max_output_tokens=300)
        assert read(socket)["type"] == "response.created"
        service.server.stop()
        assert rest(socket)[-1]["type"] == "response.incomplete"
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
