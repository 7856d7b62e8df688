"""One connection on a scripted loop and transport: what it gives up and when, without a clock."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from interfaces.http.dialects import DIALECTS
from interfaces.http.front.connection import BoundedConnection
from interfaces.http.front.connection_limits import ConnectionLimits, ConnectionSlots
from interfaces.http.front.guard import Refusals

LIMITS = ConnectionLimits(header_timeout_s=10.0, body_timeout_s=20.0, write_timeout_s=100.0)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = HEAD + b"Content-Length: 65536\r\n\r\n"
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
    """What one client does, and what becomes of its connection."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.loop, self.transport = ScriptedLoop(), ScriptedTransport()
        self.connection = BoundedConnection(
            LIMITS,
            ConnectionSlots(8),
            Refusals(DIALECTS, lambda code, _detail: self.refused.append(code)),
            Config(app=cast(Any, object()), log_config=None),
            ServerState(),
            {},
            _loop=cast(asyncio.AbstractEventLoop, self.loop),
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
        self.connection._arrival.cancel()
        self.transport.unsent_bytes = num_bytes
        self.connection.pause_writing()

    def takes(self, num_bytes: int, every_s: float, for_s: float) -> None:
        for _ in range(int(for_s / every_s)):
            if self.transport.unsent_bytes == 0 or self.transport.is_over:
                return
            self.loop.advance(every_s)
            self.transport.unsent_bytes = max(0, self.transport.unsent_bytes - num_bytes)


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
            client.connection.evict()
            assert client.transport.is_over
            assert client.refused == ["too_many_connections"]
        assert silent.transport.written == b""
        assert half.transport.written.startswith(b"HTTP/1.1 503 ")
        assert body.transport.written.startswith(b"HTTP/1.1 503 ")
