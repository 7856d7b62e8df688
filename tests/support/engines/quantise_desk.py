"""Quantise beside listed models, driven on an event loop of the test."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from adapters.fake.environment import FakeClock
from application.services.text_side.models.model_finder import ModelStatus
from application.use_cases.models import ModelEntry, Models
from application.use_cases.quantise import Quantise, QuantJob, QuantWish
from domain.errors import DomainError
from domain.ids import ModelId
from domain.models.capability import Capability, ModelUse
from domain.models.model_card import ModelSource
from domain.models.quantisation import Quantisation
from domain.models.residency import Residence
from domain.models.weight_form import WeightForm
from tests.support.engines.fake_quantiser import FakeQuantiser
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

SMALL = ModelId("org/Small")
VECTORS = ModelUse(frozenset({Capability.EMBED}))
SOURCES = (
    ModelSource(SMALL, "/models/org/Small"),
    ModelSource(ModelId("four"), "/models/four", form=WeightForm("llama", "Q4", 4.5)),
    ModelSource(ModelId("tuned"), "/models/tuned", adapter="/adapters/one"),
    ModelSource(ModelId("words"), "/models/words", use=replace(VECTORS, is_encoder=True)),
    ModelSource(ModelId("vectors"), "/models/vectors", use=VECTORS),
)


class ListedModels:
    """The part of Models that quantising uses. A source with the note `loaded` is."""

    def __init__(self, sources: Sequence[ModelSource] = SOURCES, free_bytes: int | None = None) -> None:
        self.sources, self.free_bytes = list(sources), free_bytes

    async def all(self) -> list[ModelEntry]:
        loaded = ModelStatus(residence=Residence.LOADED)
        states = {source.id: loaded if source.note == "loaded" else ModelStatus() for source in self.sources}
        return [ModelEntry(source, None, status=states[source.id]) for source in self.sources]


class Desk:
    def __init__(self, folder: Path, quantiser: FakeQuantiser | None, models: ListedModels | None = None) -> None:
        self.folder, self.events, self.models = folder, RecordingEvents(), models or ListedModels()
        self.quantise = Quantise(quantiser, str(folder), cast(Models, self.models), self.events, FakeClock())

    async def started(self, **wish: Any) -> QuantJob:
        return await self.quantise.start(SMALL, QuantWish(Quantisation(), **wish))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - a thread tells
            await asyncio.sleep(0.001)


async def ended(job: QuantJob) -> None:
    await until(lambda: job.end)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def run(desk: Desk, work: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        try:
            await work
        finally:
            desk.quantise.close()

    asyncio.run(whole())


async def refusal(work: Coroutine[Any, Any, Any]) -> tuple[str | None, str]:
    with pytest.raises(DomainError) as raised:
        await work
    return raised.value.param, raised.value.message
