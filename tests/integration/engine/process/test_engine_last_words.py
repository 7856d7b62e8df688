"""The end of an engine's process and its answers to questions, where a message cannot be read or encoded."""

import asyncio
import logging
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from adapters.engine_process.channel import Channel, framed
from adapters.engine_process.engine import EngineProcess
from adapters.engine_process.host import EngineHost, Hosted
from adapters.engine_process.messages import Begin, Stop, Stopped, ToParent, decoded, encoded, greeting
from adapters.system.clock import SystemClock
from application.ports.engine import Engine, EngineStatus
from domain.errors import ComputeFailed, DomainError, ModelLoadFailed, ServerUnavailable
from domain.models.model_card import LoadOptions
from tests.support.engines.engine_client import MODEL, hosted_toy, source
from tests.support.patience import PATIENCE_S
from tests.support.processes.hosted_child import HostedChild

STRANGE, SPELLED = "a file of the name \udc80", "a file of the name \\udc80"


class Stuffed(Channel):
    """Full from the beginning, for the other end reads nothing. `leave`: called behind the last message."""

    def __init__(self, leave: Callable[[], None], *rest: Any) -> None:
        super().__init__(*rest)
        self._leave = leave
        super().send(bytes(1 << 24))
        assert self.num_unsent_bytes

    def send(self, payload: bytes) -> None:
        super().send(payload)
        if payload != greeting() and isinstance(decoded(payload, ToParent), Stopped):
            asyncio.get_running_loop().call_soon(self._leave)


def test_a_process_that_stops_ends_when_its_reader_leaves_without_having_read() -> None:
    async def run() -> int:
        ours, theirs = socket.socketpair()
        host = EngineHost(hosted_toy, open_channel=lambda *rest: Stuffed(ours.close, *rest))
        ours.send(framed(encoded(Begin(b""))) + framed(encoded(Stop(PATIENCE_S))))
        async with asyncio.timeout(PATIENCE_S):
            return await host.run(theirs)

    assert asyncio.run(run()) == 0


class Hanging:
    """An engine whose step does not end. All but its stop is another's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def stop(self, timeout_s: float) -> bool:
        await self._engine.stop(timeout_s)
        return False


def test_a_process_whose_engine_hangs_writes_its_stacks_and_ends_once_its_socket_is_closed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def make(settings: bytes, hold: Callable[[], None]) -> Hosted:
        hosted = hosted_toy(settings, hold)
        return Hosted(Hanging(hosted.engine), hosted.check)

    async def run() -> int:
        ours, theirs = socket.socketpair()
        with ours:
            ours.send(framed(encoded(Begin(b""))))
            ours.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(PATIENCE_S):
                return await EngineHost(make).run(theirs)

    assert asyncio.run(run()) == 1
    assert "(most recent call first)" in capfd.readouterr().err


@pytest.fixture(autouse=True)
def unlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is logged of such texts cannot be passed between the tests' processes."""
    monkeypatch.setattr(logging.getLogger("cairn.engine"), "disabled", True)


def asked(raised: Exception | None) -> DomainError:
    """What comes of a check that raises this, or that finds what no message can hold."""

    def check(*_: object) -> Any:
        if raised is not None:
            raise raised
        return object()

    def make(settings: bytes, hold: Callable[[], None]) -> Hosted:
        return Hosted(hosted_toy(settings, hold).engine, check)

    async def run() -> DomainError:
        engine = EngineProcess(HostedChild(make), b"", SystemClock())
        engine.start(lambda _: None)
        try:
            with pytest.raises(DomainError) as found:
                await asyncio.wait_for(engine.check(source(MODEL), LoadOptions()), PATIENCE_S)
            return found.value
        finally:
            assert await engine.stop(PATIENCE_S)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (ModelLoadFailed(STRANGE, param="model"), ModelLoadFailed, SPELLED),
        (ValueError(STRANGE), ComputeFailed, f"ValueError: {SPELLED}"),
        (None, ComputeFailed, "NotImplementedError: the engine port has no type object"),
    ],
    ids=["ours", "any", "no error"],
)
def test_a_question_is_answered_even_where_its_answer_cannot_be_written(
    raised: Exception | None, kind: type, message: str
) -> None:
    found = asked(raised)
    assert type(found) is kind
    assert found.message == message


@pytest.mark.parametrize(
    ("raised", "message"),
    [(ModelLoadFailed(STRANGE), SPELLED), (ValueError("planted"), "the engine cannot be made: ValueError: planted")],
    ids=["ours", "any"],
)
def test_an_engine_that_cannot_be_made_says_why_in_whatever_characters(raised: Exception, message: str) -> None:
    def make(settings: bytes, hold: Callable[[], None]) -> Hosted:
        raise raised

    async def run() -> EngineStatus:
        engine = EngineProcess(HostedChild(make), b"", SystemClock())
        engine.start(lambda _: None)
        with pytest.raises(ServerUnavailable, match=re.escape(message)):
            await asyncio.wait_for(engine.load(source(MODEL), LoadOptions()), PATIENCE_S)
        await engine.stop(PATIENCE_S)
        return engine.status()

    status = asyncio.run(run())
    assert (status.is_alive, status.fault) == (False, message)
