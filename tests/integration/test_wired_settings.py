"""Settings reach what they are for, in the service as it ships: what the tests of each feature hand over themselves."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from application.events import RequestEnded
from application.model_table import ModelTable
from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.chat import ChatMessage, Role
from domain.duration import Duration
from domain.ids import ModelId, RequestId
from domain.request import ChatPrompt, GenerationRequest
from interfaces.composition.service import Service, build_service
from tests.support.closed_guard import ClosedGuard
from tests.support.patience import PATIENCE_S
from tests.support.recording import RecordingEvents

MODEL, PINNED = ModelId("fake-attention"), ModelId("fake-hybrid")
SETTINGS = Settings(
    model=ModelSettings(default=MODEL, download=False, idle_ttl=Duration(1800)),
    engine=EngineSettings(backend="fake", block_size=16, memory_wait_s=0.05),
    store=StoreSettings(kind="off", hot_tier=ByteSize(num_bytes=1 << 20)),
    models={PINNED: ModelTable(pin=True, idle_ttl=Duration(60))},
)
ASKED = ChatPrompt((ChatMessage(Role.SYSTEM, "Be brief."), ChatMessage(Role.USER, "hi")))


def served(use: Coroutine[Any, Any, None], service: Service) -> None:
    async def run() -> None:
        await service.start()
        try:
            await asyncio.wait_for(use, PATIENCE_S)
        finally:
            assert await service.stop(PATIENCE_S)

    asyncio.run(run())


def test_models_have_the_times_and_pins_that_are_set() -> None:
    service = build_service(SETTINGS)
    told = [service.pool.standing(id) for id in (MODEL, PINNED)]
    assert [(one.idle_ttl_s, one.is_pinned) for one in told] == [(1800, False), (60, True)]
    service.container.encoder().close()


def test_who_waits_for_memory_is_sent_away_after_the_time_that_is_set() -> None:
    events = RecordingEvents()
    service = build_service(SETTINGS, guard=ClosedGuard(), extra_sinks=(events,))

    async def ask() -> None:
        async for _ in await service.container.generate().start(GenerationRequest(RequestId("r"), MODEL, ASKED)):
            pass

    served(ask(), service)
    assert [event.error_code for event in events.events if isinstance(event, RequestEnded)] == ["memory_busy"]
