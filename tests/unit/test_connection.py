"""One connection on a scripted loop and transport: which clients are given up, without a clock."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn import Config
from uvicorn.server import ServerState

from interfaces.http.connection import BoundedConnection
from interfaces.http.connection_limits import ConnectionLimits, Places
from interfaces.http.dialects import DIALECTS
from interfaces.http.refusal import Refusals

LIMITS = ConnectionLimits(write_timeout_s=100.0)


class Timer:
    def __init__(self, due_s: float, callback: Callable[[], None]) -> None:
        self.due_s = due_s
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ScriptedLoop:
    """Time passes in `advance` only."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now_s + delay_s, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer.callback is not None and timer.due_s <= end_s]:
            timer = min(due, key=lambda one: one.due_s)
            callback, timer.callback, self.now_s = timer.callback, None, timer.due_s
            assert callback is not None
            callback()
        self.now_s = end_s


class ScriptedTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.unsent_bytes = 0
        self.is_aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class Reader:
    """A client with an answer of `num_bytes` to take."""

    def __init__(self, num_bytes: int) -> None:
        self.refused: list[str] = []
        self.loop, self.transport = ScriptedLoop(), ScriptedTransport()
        self.connection = BoundedConnection(
            LIMITS,
            Places(8),
            Refusals(DIALECTS, lambda code, _detail: self.refused.append(code)),
            Config(app=cast(Any, object()), log_config=None),
            ServerState(),
            {},
            _loop=cast(asyncio.AbstractEventLoop, self.loop),
        )
        self.connection.connection_made(self.transport)
        self.connection._arrival.cancel()
        self.transport.unsent_bytes = num_bytes
        self.connection.pause_writing()

    def takes(self, num_bytes: int, every_s: float, for_s: float) -> None:
        for _ in range(int(for_s / every_s)):
            if self.transport.unsent_bytes == 0 or self.transport.is_aborted:
                return
            self.loop.advance(every_s)
            self.transport.unsent_bytes = max(0, self.transport.unsent_bytes - num_bytes)


def test_a_client_that_takes_a_little_now_and_then_is_given_up() -> None:
    """200 bytes every 20 s held 16.7 MB for ever."""
    reader = Reader(16_700_000)
    reader.takes(200, every_s=20, for_s=400)
    assert reader.refused == ["write_timeout"]
    assert reader.transport.is_aborted
    assert reader.loop.now_s <= 120


def test_a_slow_client_that_keeps_taking_its_answer_gets_all_of_it() -> None:
    reader = Reader(2_000_000)
    reader.takes(4_000, every_s=2, for_s=2_000)
    assert not reader.refused
    assert reader.transport.unsent_bytes == 0


def test_a_fast_beginning_buys_no_silence() -> None:
    reader = Reader(16_700_000)
    reader.takes(8_000_000, every_s=1, for_s=1)
    reader.loop.advance(201)
    assert reader.refused == ["write_timeout"]
