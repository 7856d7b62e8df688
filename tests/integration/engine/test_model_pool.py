"""The model pool over the engine loop: models that are broken, unknown or too large, and rooms that are waited for."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock, FakeIds
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizers
from adapters.web.image_fetcher import ImageFetcher
from application.live_settings import LiveSettings
from application.ports.compute import LoadReport, LoadSteps, unreported
from application.ports.engine import Submission
from application.ports.model_repository import ModelPreview
from application.services.text_side.answers.answer import Answer
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.answers.prompt_files import PromptFiles
from application.services.text_side.answers.prompt_images import PromptImages
from application.services.text_side.models.model_pool import ROOM_WAIT_S, ModelPool
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.engine_thread import EngineThread
from application.services.token_side.event_batcher import EventBatcher
from application.settings import ModelSettings, ModelTable, Settings
from application.use_cases.generate import Generate
from domain.duration import Duration
from domain.errors import InvalidRequest, ModelExceedsMemory, ModelLoadFailed, ModelNotFound, ModelsBusy
from domain.ids import ModelId, RequestId
from domain.models.capability import Capability, ModelUse
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.residency import LoadRoom
from domain.request.request import GenerationRequest, TextPrompt
from domain.request.sampling import SamplingParams, StopRules
from domain.scheduling.step_values import StepLimits
from domain.speculation.drafter import SpeculationMode
from tests.support.engines.guards import UnboundedGuard
from tests.support.http.files import ToyFiles
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate
from tests.support.stores.cache_driver import prefix_cache
from tests.support.telemetry.recording import RecordingEvents

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


class AskedEngine(FakeEngine):
    """Remembers how it was asked to load."""

    def __init__(self, options: Mapping[ModelId, FakeOptions] | None = None) -> None:
        super().__init__(options)
        self.asked: list[LoadOptions] = []

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        self.asked.append(options)
        return super().load(source, options, report)


class Bench:
    """A pool of toy models over a running engine. `weight_bytes`: what each is said to take."""

    def __init__(
        self,
        max_loaded: int | None = None,
        options: Mapping[ModelId, FakeOptions] | None = None,
        tables: Mapping[str, ModelTable] | None = None,
        room: LoadRoom | None = None,
        room_wait_s: float = ROOM_WAIT_S,
        uses: Mapping[str, ModelUse] | None = None,
        **settings: Any,
    ) -> None:
        self.room = room or LoadRoom()
        self.engine = AskedEngine(options)
        self.events = RecordingEvents()
        clock, cache = FakeClock(), prefix_cache()
        self.clock = clock
        batcher, limits = EventBatcher(clock), StepLimits(8, 64, 32)
        self.loop = EngineThread(
            EngineLoop(batcher=batcher, prefix_cache=cache, guard=UnboundedGuard(), limits=limits),
            make_backend=lambda: self.engine,
        )
        requests = OpenRequests(self.loop, self.events, clock, max_queue=100)
        self._receive = requests.receive
        self._numbers, self.entered = count(), AsyncExitStack()
        self.models = FakeModels(("a", "b", "c"), uses)
        self.refused: dict[ModelId, str] = {}
        self.weight_bytes: dict[ModelId, int] = {}
        self.pool = ModelPool(
            repository=self.models,
            tokenizers=FakeTokenizers(),
            engine=self.loop,
            live=LiveSettings(Settings(model=ModelSettings(default="a", **settings), models=tables or {})),
            clock=clock,
            check=self._check,
            room=lambda: self.room,
            max_loaded=max_loaded,
            room_wait_s=room_wait_s,
        )
        self.encoder = PromptEncoder(PromptImages(ImageFetcher(lambda: ())), PromptFiles(ToyFiles()))
        self.generate = Generate(
            pool=self.pool,
            engine=self.loop,
            requests=requests,
            ids=FakeIds(),
            encoder=self.encoder,
        )

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a test's coroutine with the engine started; a livelock ends as a TimeoutError."""

        async def run() -> None:
            self.loop.start(self._receive)
            try:
                await asyncio.wait_for(work(), PATIENCE_S)
            finally:
                await self.entered.aclose()
                assert await self.loop.stop(PATIENCE_S)

        asyncio.run(run())

    def _check(self, source: ModelSource, options: LoadOptions) -> ModelPreview:
        if reason := self.refused.get(source.id):
            raise ModelLoadFailed(reason)
        return ModelPreview(self.weight_bytes.get(source.id, 0))

    async def start(self, id: ModelId, num_tokens: int = 3) -> Answer:
        stop = StopRules(max_tokens=num_tokens, ignore_eos=True)
        request = GenerationRequest(
            RequestId(f"r{next(self._numbers)}"), id, TextPrompt("x"), sampling=SamplingParams(), stop=stop
        )
        return await self.entered.enter_async_context(self.generate.answering([request]))

    def loads(self) -> list[ModelId]:
        return [event.id for event in self.events.of("ModelLoaded")]

    def loaded(self) -> set[ModelId]:
        return {model.description.id for model in self.engine.loaded}

    async def use(self, id: ModelId) -> None:
        """One short request."""
        served = await self.pool.acquire(id)
        assert served.source.id == id
        assert id in self.loaded()
        await asyncio.sleep(0)
        self.pool.release(served)


def test_a_broken_model_evicts_a_good_one_no_more_than_once() -> None:
    bench = Bench(max_loaded=1, options={B: FakeOptions(load_error="its weights do not fit its layers")})

    async def work() -> None:
        await bench.use(A)
        for _ in range(4):
            with pytest.raises(ModelLoadFailed, match="do not fit"):
                await bench.use(B)
            await bench.use(A)

    bench.run(work)
    assert bench.loads() == [A, A]


def test_an_invalid_or_unknown_model_evicts_nothing() -> None:
    bench = Bench(max_loaded=1)
    bench.refused[B] = "its weights are cut short"

    async def work() -> None:
        await bench.use(A)
        for _ in range(3):
            with pytest.raises(ModelLoadFailed, match="cut short"):
                await bench.use(B)
        with pytest.raises(ModelNotFound):
            await bench.use(ModelId("nonsense"))
        bench.refused.clear()  # repaired files are tried at once
        await bench.use(B)

    bench.run(work)
    assert bench.loads() == [A, B]


def test_a_request_that_a_model_cannot_answer_neither_loads_nor_evicts() -> None:
    bench = Bench(max_loaded=1, uses={"b": ModelUse(frozenset({Capability.EMBED}))})

    async def work() -> None:
        await bench.use(A)
        with pytest.raises(InvalidRequest, match="model b cannot generate: it can embed"):
            await bench.start(B)
        assert bench.loaded() == {A}

    bench.run(work)
    assert bench.loads() == [A]


def test_waiting_in_vain_for_room_ends_with_the_time_to_try_again() -> None:
    bench = Bench(max_loaded=1, room_wait_s=0.01)

    async def work() -> None:
        served = await bench.pool.acquire(A)
        with pytest.raises(
            ModelsBusy, match=r"within 0.01 s: 1 other model in use, and 1 may be loaded at once$"
        ) as caught:
            await bench.pool.acquire(B)
        assert caught.value.retry_after_s >= 1
        await bench.use(A)  # no request waits any more
        bench.pool.release(served)
        await bench.use(B)

    bench.run(work)
    assert bench.loads() == [A, B]


def test_whoever_waits_is_counted_from_when_its_model_is_looked_for() -> None:
    bench = Bench()

    async def work() -> None:
        for id in (A, ModelId("nobody")):
            asked = asyncio.create_task(bench.use(id))
            await asyncio.sleep(0)
            assert bench.pool.num_waiting == 1
            await asyncio.gather(asked, return_exceptions=True)
            assert bench.pool.num_waiting == 0

    bench.run(work)


def sized(**num_bytes: int) -> dict[ModelId, FakeOptions]:
    return {ModelId(name): FakeOptions(weight_bytes=size) for name, size in num_bytes.items()}


def test_a_model_that_can_never_fit_is_refused_with_its_numbers_and_evicts_nothing() -> None:
    bench = Bench(room=LoadRoom(100, fixed_bytes=10), options=sized(a=50, b=40, c=91))
    bench.weight_bytes = {A: 50, B: 40, C: 91}

    async def work() -> None:
        await bench.use(A)
        await bench.use(B)
        with pytest.raises(ModelExceedsMemory, match="91 B, and 90 B are available") as caught:
            await bench.use(C)
        error = caught.value
        assert (error.needed_bytes, error.available_bytes, error.limit_bytes) == (91, 90, 100)
        bench.weight_bytes[C] = 90  # other files; no failure is remembered
        await bench.use(C)
        assert bench.loaded() == {C}

    bench.run(work)
    assert bench.loads() == [A, B, C]


def test_whoever_waits_for_what_requests_hold_is_served_once_it_is_free() -> None:
    """The pool gets no event when requests give memory back: it looks again."""
    bench = Bench(room=LoadRoom(100, busy_bytes=60), options=sized(a=50))
    bench.weight_bytes = {A: 50}

    async def work() -> None:
        waiting = asyncio.create_task(bench.use(A))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        bench.room = LoadRoom(100)
        await waiting

    bench.run(work)


def test_a_model_that_fits_waits_for_the_loads_before_it_however_long_and_another_hears_the_reason() -> None:
    gate, room = Gate("load", 0), LoadRoom(100, busy_bytes=5)
    options = {**sized(b=30, c=60), A: FakeOptions(weight_bytes=50, hook=gate)}
    bench = Bench(room=room, room_wait_s=0.01, options=options)
    bench.weight_bytes = {A: 50, B: 30, C: 60}

    async def work() -> None:
        first = asyncio.create_task(bench.use(A))
        await asyncio.to_thread(gate.wait_until_reached)
        second = asyncio.create_task(bench.use(B))
        with pytest.raises(ModelsBusy, match=r"requests in use, and it needs 60 B, and 55 B of 100 B are held$"):
            await bench.use(C)
        gate.open()
        await asyncio.gather(first, second)

    bench.run(work)
    assert bench.loads() == [A, B]


def test_tables_say_how_single_models_are_loaded() -> None:
    tables = {"a": ModelTable(dtype="float16", context_length=99, salt="own", idle_ttl=Duration(7), pin=True)}
    bench = Bench(tables=tables, dtype="bfloat16", idle_ttl=Duration(60))

    async def work() -> None:
        await bench.use(A)
        await bench.use(B)
        found = {served.source.id: served.description.context_length for served in bench.pool.loaded()}
        assert found == {A: 99, B: FakeOptions().context_length}
        assert [(bench.pool.status(id).idle_ttl_s, bench.pool.status(id).is_pinned) for id in (A, B)] == [
            (7, True),
            (60, False),
        ]

    bench.run(work)
    assert bench.engine.asked == [LoadOptions("float16", "own", context_length=99), LoadOptions("bfloat16")]


def test_the_drafters_of_a_model_are_its_tables_or_the_servers() -> None:
    tables = {
        "b": ModelTable(speculation="draft", draft="a"),
        "c": ModelTable(speculation="ngram", draft="no model: no drafter needs it"),
    }
    bench = Bench(max_loaded=3, tables=tables, draft="a")

    async def work() -> None:
        for id in (A, B, C):
            await bench.use(id)

    bench.run(work)
    assert [(asked.speculation, asked.draft) for asked in bench.engine.asked] == [
        (SpeculationMode.AUTO, ""),  # a model does not draft for itself
        (SpeculationMode.DRAFT, "fake:a"),
        (SpeculationMode.NGRAM, ""),
    ]


@pytest.mark.parametrize(
    ("setting", "tables", "settings"),
    [
        ("model.draft", {}, {"draft": "nowhere"}),
        ('models."b".draft', {"b": ModelTable(draft="nowhere")}, {}),
    ],
)
def test_a_draft_model_that_is_not_served_fails_the_load_by_its_setting(
    setting: str, tables: dict[str, ModelTable], settings: dict[str, str]
) -> None:
    bench = Bench(tables=tables, **settings)

    async def work() -> None:
        with pytest.raises(ModelLoadFailed, match=f"^{re.escape(setting)} must be a served model's name or a folder:"):
            await bench.use(B)

    bench.run(work)
    assert not bench.engine.asked


def test_a_request_is_queued_before_the_engine_can_admit_it() -> None:
    bench = Bench()
    submit, started_ns = bench.loop.submit, bench.clock.now_ns()

    def submit_slowly(submission: Submission) -> None:
        submit(submission)
        bench.clock.advance(1.0)

    bench.loop.submit = submit_slowly  # type: ignore[method-assign]

    async def work() -> None:
        answer = await bench.start(ModelId("a"))
        assert [item async for _, item in answer]

    bench.run(work)
    (queued,) = bench.events.of("RequestQueued")
    assert queued.at_ns == started_ns  # type: ignore[union-attr]
