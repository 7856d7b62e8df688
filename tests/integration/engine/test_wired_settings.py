"""Settings reach what they are for, in the service as it ships: what the tests of each feature hand over themselves."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from application.settings import EngineSettings, ModelSettings, ModelTable, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.ids import ModelId
from domain.request.chat import ChatMessage, Role
from domain.request.request import ChatPrompt
from interfaces.composition.service import Service, build_service
from tests.support.patience import PATIENCE_S

MODEL, PINNED = ModelId("fake-attention"), ModelId("fake-hybrid")
SETTINGS = Settings(
    model=ModelSettings(default=MODEL, download=False, idle_ttl=Duration(1800)),
    engine=EngineSettings(backend="fake", block_size=16),
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
    told = [service.pool.status(id) for id in (MODEL, PINNED)]
    assert [(one.idle_ttl_s, one.is_pinned) for one in told] == [(1800, False), (60, True)]
    service.container.encoder().close()
