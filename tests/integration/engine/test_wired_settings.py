"""The wired service: settings reach what they are for, and the telemetry of both sides arrives until it has stopped."""

import asyncio
from dataclasses import replace

import pytest

from application.settings import EngineSettings, MetricsSettings, ModelSettings, ModelTable, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.duration import Duration
from domain.ids import ModelId, RequestId
from domain.request.request import GenerationRequest, TextPrompt
from domain.request.sampling import StopRules
from interfaces.composition.service import build_service
from tests.support.patience import PATIENCE_S
from tests.support.telemetry.otel import clear_otel_variables
from tests.support.telemetry.recording import RecordingEvents

MODEL, PINNED = ModelId("fake-attention"), ModelId("fake-hybrid")
SETTINGS = Settings(
    model=ModelSettings(default=MODEL, download=False, idle_ttl=Duration(1800)),
    engine=EngineSettings(backend="fake", block_size=16),
    store=StoreSettings(kind="off", hot_tier=ByteSize(num_bytes=1 << 20)),
    models={PINNED: ModelTable(pin=True, idle_ttl=Duration(60))},
)


def test_models_have_the_times_and_pins_that_are_set() -> None:
    service = build_service(SETTINGS)
    told = [service.pool.status(id) for id in (MODEL, PINNED)]
    assert [(one.idle_ttl_s, one.is_pinned) for one in told] == [(1800, False), (60, True)]
    service.container.encoder().close()


def test_routers_get_the_default_models_figures_under_the_names_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_otel_variables(monkeypatch)
    service = build_service(replace(SETTINGS, metrics=MetricsSettings(vllm_names=True)))
    telemetry = service.container.telemetry()
    assert telemetry.metrics_text is not None
    lines = telemetry.metrics_text("").body.decode().splitlines()
    assert f'cairn_requests_running{{gen_ai_response_model="{MODEL}"}} 0.0' in lines
    assert f'vllm:cache_config_info{{block_size="16",model_name="{MODEL}",num_gpu_blocks="0"}} 1.0' in lines
    telemetry.shutdown()
    service.container.encoder().close()


def test_stopping_a_service_hands_over_what_both_sides_and_the_workers_reported() -> None:
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
        async with service.container.generate().answering([request]) as answer:
            async for _ in answer:
                break  # and so its end is reported while the service stops
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
