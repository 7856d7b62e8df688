"""Output that cannot be encoded ends the engine with the reason: no answer has a gap, and none hangs."""

import asyncio

import pytest

from adapters.engine_process.engine import EngineProcess
from adapters.system.clock import SystemClock
from application.events import FaultObserved
from application.ports.engine import Ended
from domain.models.model_card import LoadOptions
from tests.support.engines.engine_client import MODEL, UNWRITTEN, EngineClient, hosted_toy, source
from tests.support.patience import PATIENCE_S
from tests.support.processes.hosted_child import HostedChild

WHY = "the engine stopped: its output cannot be encoded: UnicodeEncodeError"


def test_a_batch_that_cannot_be_written_ends_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    lost = list[str]()

    async def run() -> EngineClient:
        client = EngineClient(EngineProcess(HostedChild(hosted_toy), b"", SystemClock(), lost=lost.append))
        client.engine.start(client.receive)
        for model in (MODEL, UNWRITTEN):
            await client.engine.load(source(model), LoadOptions())
        client.submit("a", num_tokens=5_000, model=UNWRITTEN)
        client.submit("beside", num_tokens=30_000)
        await client.until(lambda: any(isinstance(event, FaultObserved) for event in client.events), "its end")
        assert await client.engine.stop(PATIENCE_S)
        return client

    client = asyncio.run(run())
    assert not [item for id in ("a", "beside") for item in client.items(id) if isinstance(item, Ended)], "a hole"
    assert lost[0].startswith(WHY)
    (fault,) = [event for event in client.events if isinstance(event, FaultObserved)]
    assert (fault.where, fault.message.startswith(WHY)) == ("engine.process", True)
    assert "the engine's output cannot be encoded" in caplog.text
