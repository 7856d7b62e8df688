"""What an engine puts out and nobody can write ends the engine, with the reason: no answer has a hole, none hangs."""

import asyncio

import pytest

from adapters.engine_process.engine import EngineProcess
from adapters.system.clock import SystemClock
from application.events import FaultObserved
from application.ports.engine import Ended, Tokens
from domain.model_card import LoadOptions
from tests.support.engine_client import MODEL, UNWRITTEN, EngineClient, hosted_toy, source
from tests.support.hosted_child import HostedChild
from tests.support.patience import PATIENCE_S

WHY = "the engine stopped: what it put out cannot be written: UnicodeEncodeError"


def test_a_batch_that_cannot_be_written_ends_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> EngineClient:
        client = EngineClient(EngineProcess(HostedChild(hosted_toy), b"", SystemClock()))
        client.engine.start(client.receive)
        for model in (MODEL, UNWRITTEN):
            await client.engine.load(source(model), LoadOptions())
        client.submit("a", num_tokens=5_000, model=UNWRITTEN)
        client.submit("beside", num_tokens=30_000)
        for id in ("a", "beside"):
            await client.end(id)
        assert await client.engine.stop(PATIENCE_S)
        return client

    client = asyncio.run(run())
    for id in ("a", "beside"):
        *_, end = client.items(id)
        num_told = sum(len(item.token_ids) for item in client.items(id) if isinstance(item, Tokens))
        assert isinstance(end, Ended)
        assert end.error is not None
        assert end.error.message.startswith(WHY)
        assert end.usage.completion_tokens == num_told
    (fault,) = [event for event in client.events if isinstance(event, FaultObserved)]
    assert (fault.where, fault.message.startswith(WHY)) == ("engine.process", True)
    assert "what the engine put out cannot be written" in caplog.text
