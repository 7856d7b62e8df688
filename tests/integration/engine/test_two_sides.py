"""The text side over the engine, in a whole server: choices of one prompt, telemetry of both sides."""

import asyncio
from typing import TypeVar

from adapters.fake.options import FakeOptions
from application.events import PrefillChunkComputed, RequestEnded, RequestQueued
from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.ids import ModelId, RequestId
from domain.request.request import GenerationRequest, TextPrompt
from domain.request.sampling import StopRules
from interfaces.composition.service import build_service
from tests.support.http.fake_service import FakeService, fake_service
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.recording import RecordingEvents

PATH = "/v1/completions"


E = TypeVar("E")


def events_of(service: FakeService, kind: type[E]) -> list[E]:
    return [event for event in service.events.events if isinstance(event, kind)]


def test_the_prompt_of_several_choices_is_computed_once() -> None:
    with fake_service(FakeOptions(eos_every=0)) as service:  # without any prefix reuse
        body = {"prompt": ["p" * 600, "q" * 600], "n": 3, "max_tokens": 3}
        answer = service.client.post(PATH, json=body).json()
        assert len(answer["choices"]) == 6
        assert answer["usage"]["prompt_tokens"] == 1200
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        service.wait_until_idle()
        chunks = [
            event for event in events_of(service, PrefillChunkComputed) if isinstance(event, PrefillChunkComputed)
        ]
        assert sum(chunk.end - chunk.start for chunk in chunks) <= 1200 + 4 * 32
        queued = [event.id for event in events_of(service, RequestQueued) if isinstance(event, RequestQueued)]
        ended = [event.id for event in events_of(service, RequestEnded) if isinstance(event, RequestEnded)]
        assert sorted(queued) == sorted(ended)
        assert len(set(queued)) == 6


def test_stopping_a_service_hands_over_what_both_sides_and_the_workers_told() -> None:
    recorded = RecordingEvents()
    settings = Settings(
        model=ModelSettings(default="fake-hybrid", download=False),
        engine=EngineSettings(backend="fake", block_size=16),
        store=StoreSettings(kind="memory", hot_tier=ByteSize(num_bytes=1 << 26)),
    )

    async def run() -> None:
        service = build_service(settings, extra_sinks=(recorded,))
        await service.start()
        await service.ready()
        request = GenerationRequest(RequestId("r"), ModelId("fake-hybrid"), TextPrompt("x" * 300), stop=StopRules(9))
        answer = await service.container.generate().start([request])
        async for _ in answer:
            break
        answer.close()  # and so its end is told while the service stops
        assert await service.stop(PATIENCE_S)

    asyncio.run(run())
    names = [type(event).__name__ for event in recorded.events]
    for name in (
        "ModelLoaded",
        "RequestQueued",
        "RequestAdmitted",
        "RequestEnded",
        "ModelUnloaded",
        "RecordsPersisted",
    ):
        assert name in names, name
    assert names.count("RequestEnded") == 1
    told = [name for name in names if name in ("RequestQueued", "RequestAdmitted", "RequestEnded")]
    assert told == ["RequestQueued", "RequestAdmitted", "RequestEnded"]
