"""One connection on a scripted loop and transport, without a clock; and the behaviour of uvicorn that it rests on."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import pytest
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from interfaces.http.dialects import DIALECTS
from interfaces.http.front.connection import BoundedConnection
from interfaces.http.front.connection_limits import ConnectionLimits, ConnectionSlots
from interfaces.http.front.guard import Refusals

LIMITS = ConnectionLimits(header_timeout_s=10.0, body_timeout_s=20.0, write_timeout_s=100.0)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = HEAD + b"Content-Length: 65536\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Timer:
    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ScriptedLoop:
    """Time passes in `advance` only; no task ever runs."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def create_task(self, work: Coroutine[Any, Any, None], **_options: Any) -> asyncio.Future[None]:
        work.close()
        return cast("asyncio.Future[None]", Task())

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer.callback is not None and timer.due_s <= end_s]:
            timer = min(due, key=lambda one: one.due_s)
            callback, timer.callback, self.now_s = timer.callback, None, timer.due_s
            assert callback is not None
            callback()
        self.now_s = end_s


class Task:
    def add_done_callback(self, _callback: Callable[[object], object]) -> None:
        pass


class ScriptedTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.unsent_bytes = 0
        self.written = b""
        self.is_over = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Client:
    """What one client does, and what becomes of its connection. `stock`: of uvicorn's own class."""

    def __init__(self, stock: type[HttpToolsProtocol] | None = None) -> None:
        self.refused: list[str] = []
        self.loop, self.transport = ScriptedLoop(), ScriptedTransport()
        refusals = Refusals(DIALECTS, lambda code, _detail: self.refused.append(code))
        make = stock or partial(BoundedConnection, LIMITS, ConnectionSlots(8), refusals)
        config = Config(app=cast(Any, object()), ws="none", log_config=None, log_level="error")
        self.connection = make(
            config=config, server_state=ServerState(), app_state={}, _loop=cast(asyncio.AbstractEventLoop, self.loop)
        )
        self.connection.connection_made(self.transport)

    def sends(self, data: bytes, then_s: float = 0.0) -> None:
        if not self.transport.is_over:
            self.connection.data_received(data)
            self.loop.advance(then_s)

    def is_answered(self) -> None:
        """The application has answered the last request."""
        cycle = self.connection.cycle
        for message in (
            {"type": "http.response.start", "status": 200, "headers": []},
            {"type": "http.response.body", "body": b""},
        ):
            with pytest.raises(StopIteration):
                cycle.send(cast(Any, message)).send(None)

    def waits_for(self, num_bytes: int) -> None:
        """So much of an answer is unsent."""
        assert isinstance(self.connection, BoundedConnection)
        self.connection._arrival.cancel()
        self.transport.unsent_bytes = num_bytes
        self.connection.pause_writing()

    def takes(self, num_bytes: int, every_s: float, for_s: float) -> None:
        for _ in range(int(for_s / every_s)):
            if self.transport.unsent_bytes == 0 or self.transport.is_over:
                return
            self.loop.advance(every_s)
            self.transport.unsent_bytes = max(0, self.transport.unsent_bytes - num_bytes)


class TestBytes:
    @pytest.mark.parametrize(
        ("start", "piece", "code"),
        [
            (HEAD, b"X-%07d: y\r\n" % 1, "headers_too_large"),
            (HEAD + b"X-Endless: ", b"y" * 65_536, "headers_too_large"),
            (HEAD, b"x" * 65_536, "headers_too_large"),
            (b"GET /", b"x" * 65_536, "target_too_long"),
            (b"", b"\r\n" * 32_768, "invalid_request"),
            (CHUNKED + b"1;", b"x" * 65_536, "invalid_request"),
            (CHUNKED + b"0\r\nX: ", b"x" * 65_536, "invalid_request"),
            (CHUNKED + b"0\r\n", b"X: %d\r\n" % 1 * 8_192, "invalid_request"),
        ],
        ids=["headers", "value", "name", "target", "blank", "extension", "trailer", "trailers"],
    )
    def test_what_has_no_end_is_refused(self, start: bytes, piece: bytes, code: str) -> None:
        client, num_sent = Client(), 0
        client.sends(start)
        while not client.refused and num_sent < 4 * 65_536:
            client.sends(piece)
            num_sent += len(piece)
        assert client.refused == [code]
        assert num_sent <= 65_536
        assert client.transport.is_over

    def test_trailers_are_no_headers(self) -> None:
        """The guard has looked at the headers when they come."""
        client = Client()
        client.sends(CHUNKED)
        headers = client.connection.cycle.scope["headers"]
        client.sends(b"0\r\nHost: evil\r\n\r\n")
        assert headers == [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]

    def test_a_body_that_was_answered_is_discarded_up_to_a_limit(self) -> None:
        client, num_sent = Client(), 0
        client.sends(CHUNKED)
        client.is_answered()
        while not client.refused and num_sent < 32 << 20:
            client.sends(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
            num_sent += 0x8000
        assert client.refused == ["body_too_large"]
        assert num_sent + 0x8000 >= 16 << 20
        assert client.transport.written.count(b"HTTP/1.1") == 1


class TestArrival:
    @pytest.mark.parametrize("start", [b"G", b"GET / HT", HEAD, HEAD + b"A: b"])
    def test_half_sent_requests_are_closed(self, start: bytes) -> None:
        client = Client()
        client.sends(start, then_s=9.9)
        assert not client.transport.is_over
        client.loop.advance(0.2)
        assert client.refused == ["request_timeout"]
        assert client.transport.written.startswith(b"HTTP/1.1 408 ")
        assert client.transport.is_over

    @pytest.mark.parametrize("start", [b"", b"\r\n"])
    def test_a_client_that_asks_nothing_is_closed_without_a_word(self, start: bytes) -> None:
        client = Client()
        client.sends(start, then_s=10.1)
        assert (client.transport.is_over, client.transport.written, client.refused) == (True, b"", [])

    def test_blank_lines_after_an_answer_are_no_sign_of_life(self) -> None:
        client = Client()
        client.sends(GET)
        client.is_answered()
        client.sends(b"\r\n", then_s=10.1)
        assert client.transport.is_over
        assert client.transport.written.count(b"HTTP/1.1") == 1

    def test_a_header_a_time_does_not_extend_it(self) -> None:
        client = Client()
        client.sends(HEAD)
        for _ in range(12):
            client.sends(b"A: b\r\n", then_s=1)
        assert client.refused == ["request_timeout"]
        assert client.loop.now_s < 11

    def test_a_client_that_waits_for_its_answer_has_no_deadline(self) -> None:
        client = Client()
        client.sends(GET, then_s=10_000)
        assert not client.transport.is_over

    @pytest.mark.parametrize("sent", [b"", b" ", b" " * 65_535], ids=len)
    def test_a_body_that_does_not_come_is_not_awaited(self, sent: bytes) -> None:
        """What came at once buys no silence: 64 KiB would be worth a minute, and 16 MiB hours."""
        client = Client()
        client.sends(BODY + sent, then_s=20 + 20.1)
        assert client.refused == ["request_timeout"]
        assert client.transport.written.startswith(b"HTTP/1.1 408 ")

    def test_a_slow_body_that_keeps_coming_is_read(self) -> None:
        client = Client()
        client.sends(BODY)
        for _ in range(64):  # together much longer than the timeout
            client.sends(b" " * 1024, then_s=0.9)
        assert not client.refused
        client = Client()
        client.sends(BODY)
        for _ in range(64):
            client.sends(b" " * 512, then_s=0.9)
        assert client.refused == ["request_timeout"]


class TestDeparture:
    def test_a_client_that_takes_a_little_now_and_then_is_given_up(self) -> None:
        """200 bytes every 20 s held 16.7 MB for ever."""
        client = Client()
        client.waits_for(16_700_000)
        client.takes(200, every_s=20, for_s=400)
        assert client.refused == ["write_timeout"]
        assert client.transport.is_over
        assert client.loop.now_s <= 120

    def test_a_slow_client_that_keeps_taking_its_answer_gets_all_of_it(self) -> None:
        client = Client()
        client.waits_for(2_000_000)
        client.takes(4_000, every_s=2, for_s=2_000)
        assert not client.refused
        assert client.transport.unsent_bytes == 0

    def test_a_fast_beginning_buys_no_silence(self) -> None:
        client = Client()
        client.waits_for(16_700_000)
        client.takes(8_000_000, every_s=1, for_s=1)
        client.loop.advance(201)
        assert client.refused == ["write_timeout"]

    def test_a_client_that_is_given_way_for_is_answered_if_it_had_begun_to_ask(self) -> None:
        silent, half, body = Client(), Client(), Client()
        half.sends(HEAD)
        body.sends(BODY)
        for client in (silent, half, body):
            assert isinstance(client.connection, BoundedConnection)
            client.connection.evict()
            assert client.transport.is_over
            assert client.refused == ["too_many_connections"]
        assert silent.transport.written == b""
        assert half.transport.written.startswith(b"HTTP/1.1 503 ")
        assert body.transport.written.startswith(b"HTTP/1.1 503 ")


class TestUvicorn:
    """The behaviour of uvicorn's protocol class that BoundedConnection builds on or makes good. If one fails with a new
    uvicorn, that part of BoundedConnection has to change, or can go where uvicorn has got a bound of its own."""

    def test_it_bounds_neither_time_nor_bytes(self) -> None:
        for start in (b"", HEAD + b"X: ", b"GET /", CHUNKED + b"1;"):
            client = Client(HttpToolsProtocol)
            client.sends(start + b"x" * 1_000_000 if start else start)
            client.connection.pause_writing()
            assert (client.loop.timers, client.transport.written, client.transport.is_over) == ([], b"", False)

    def test_trailers_join_the_list_that_headers_names(self) -> None:
        client = Client(HttpToolsProtocol)
        client.sends(CHUNKED)
        assert client.connection.headers is client.connection.cycle.scope["headers"]
        client.sends(b"0\r\nHost: evil\r\n\r\n")
        assert (b"host", b"evil") in client.connection.headers

    def test_what_the_parser_or_a_callback_refuses_ends_in_send_400_response(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        monkeypatch.setattr(HttpToolsProtocol, "send_400_response", lambda _self, message: told.append(message))
        Client(HttpToolsProtocol).sends(b"no http\r\n\r\n")
        Client(HttpToolsProtocol).sends(b"GET no-path HTTP/1.1\r\n\r\n")
        assert len(told) == 2

    def test_an_answer_closes_the_connection_that_is_not_to_be_kept(self) -> None:
        client = Client(HttpToolsProtocol)
        client.sends(GET)
        client.connection.cycle.keep_alive = False
        client.is_answered()
        assert client.transport.is_over

    def test_a_body_that_comes_after_its_answer_is_thrown_away(self) -> None:
        client = Client(HttpToolsProtocol)
        client.sends(BODY)
        client.is_answered()
        client.sends(b"x" * 65_536 + GET)
        assert client.connection.cycle.scope["method"] == "GET"

    def test_who_waits_for_a_body_hears_of_a_disconnect(self) -> None:
        client = Client(HttpToolsProtocol)
        client.sends(BODY)
        cycle = client.connection.cycle
        cycle.disconnected = True
        cycle.message_event.set()
        with pytest.raises(StopIteration) as returned:
            cycle.receive().send(None)
        assert returned.value.value == {"type": "http.disconnect"}

    def test_a_request_before_its_answer_stops_the_reading(self) -> None:
        """The client's disconnect is not seen then until the application receives again."""
        client = Client(HttpToolsProtocol)
        client.sends(GET + GET)
        assert client.connection.flow.read_paused

    def test_the_time_between_requests_ends_in_timeout_keep_alive_handler(self) -> None:
        client = Client(HttpToolsProtocol)
        client.sends(GET)
        client.is_answered()
        (timer,) = client.loop.timers
        assert timer.callback == client.connection.timeout_keep_alive_handler
        client.sends(b"G")
        assert timer.callback is None

    def test_an_answer_begins_with_the_default_headers(self) -> None:
        client = Client(HttpToolsProtocol)
        client.connection.server_state.default_headers = [(b"date", b"today")]
        client.sends(GET)
        client.is_answered()
        assert client.transport.written.startswith(b"HTTP/1.1 200 OK\r\ndate: today\r\n")
