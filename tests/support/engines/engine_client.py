"""Engines for the port's contract suite, and a client of one that knows nothing but the port."""

import asyncio
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.engine_process.engine import EngineProcess
from adapters.engine_process.host import Hosted
from adapters.fake.engine import FakeEngine
from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions
from adapters.fake.vision import ToyImages
from adapters.memory.block_store import MemoryBlockStore
from adapters.system.clock import SystemClock
from application.events import Event
from application.ports.block_store import BlockStore
from application.ports.compute import ComputeEngine
from application.ports.engine import Ended, Engine, EngineItem, ImageWanted, StepBatch
from application.ports.model_repository import ModelPreview
from application.services.text_side.supervision.engine_supervisor import EngineSupervisor
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.engine_thread import EngineThread
from application.services.token_side.event_batcher import EventBatcher
from application.settings import EngineSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.errors import ComputeFailed, ModelLoadFailed
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.request import choice_id
from domain.scheduling.step_values import StepLimits
from interfaces.composition.cache import CacheTiers
from tests.support.engines.drafters import greedy_drafter
from tests.support.engines.guards import UnboundedGuard
from tests.support.engines.image_desk import ImageDesk
from tests.support.engines.sync_engine import submission, tokens_of
from tests.support.engines.toy_prompts import FILES, Parts, prompt_of
from tests.support.patience import PATIENCE_S
from tests.support.processes.hosted_child import HostedChild
from tests.support.processes.lanes import InlineLane

MODEL, BROKEN, FAILING = ModelId("toy"), ModelId("broken"), ModelId("failing")
DRAFTING = ModelId("drafting")
GATED, UNWRITTEN, DEADLY = ModelId("gated"), ModelId("unwritten"), ModelId("deadly")
BLOCK, GRID, MAX_BATCH = 16, 32, 3
STUCK_AFTER_S = 77.0


@dataclass(frozen=True)
class FailAt:
    """Raises for one sequence at one call of one operation, once a process."""

    operation: str
    id: int
    call: int
    error: type[ComputeFailed] = ComputeFailed

    def __call__(self, operation: str, id: SequenceId | None, call: int) -> None:
        if (operation, id, call) == (self.operation, self.id, self.call):
            raise self.error("planted")


class Unwritable(ComputeFailed):
    """Not even a message of an error is text here."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = "\udc80"


class PromptGate:
    """Prefilling of GATED waits behind its first chunk until this is opened."""

    def __init__(self) -> None:
        self._is_open = threading.Event()

    def close(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def __call__(self, operation: str, id: SequenceId | None, call: int) -> None:
        if operation == "prefill" and call > 1:
            assert self._is_open.wait(PATIENCE_S)


PROMPT_GATE = PromptGate()


def kill_the_process(operation: str, id: SequenceId | None, call: int) -> None:
    """As the system does when memory is short: only for an engine in a process of its own."""
    if operation == "load":
        os.kill(os.getpid(), signal.SIGKILL)


OPTIONS: Mapping[ModelId, FakeOptions] = {
    MODEL: FakeOptions(eos_every=0, images=ToyImages()),
    DRAFTING: greedy_drafter(FakeOptions(eos_every=0, images=ToyImages())),
    BROKEN: FakeOptions(load_error="its weights are cut short"),
    FAILING: FakeOptions(eos_every=0, hook=FailAt("decode", 1, 2)),
    GATED: FakeOptions(eos_every=0, hook=PROMPT_GATE),
    DEADLY: FakeOptions(hook=kill_the_process),
    UNWRITTEN: FakeOptions(eos_every=0, hook=FailAt("decode", 0, 2, error=Unwritable)),
}


def engine_on_a_thread(
    hold: Callable[[], object] = lambda: None,
    *,
    delivers_directly: bool = False,
    backend: Callable[[], ComputeEngine] = lambda: FakeEngine(OPTIONS),
    store: BlockStore | None = None,
) -> Engine:
    """With a prefix cache over `store`, or one in memory. `hold`, `delivers_directly`: as in EngineThread."""
    clock, limits = FakeClock(tick_ns=10), StepLimits(MAX_BATCH, 2 * GRID, GRID)
    events = EventBatcher(clock)
    settings = Settings(
        engine=EngineSettings(block_size=BLOCK), store=StoreSettings(hot_tier=ByteSize(num_bytes=1 << 26))
    )
    tiers = CacheTiers(settings, limits, store or MemoryBlockStore(None), events, clock)
    return EngineThread(
        EngineLoop(batcher=events, prefix_cache=tiers.prefix_cache, guard=UnboundedGuard(limits), limits=limits),
        make_backend=backend,
        close_cache=lambda: tiers.close(PATIENCE_S),
        hold=hold,
        delivers_directly=delivers_directly,
        stuck_after_s=STUCK_AFTER_S,
    )


def engine_behind_a_socket() -> Engine:
    """Both ends of an engine process, in this one."""
    return EngineSupervisor(
        lambda lost: EngineProcess(HostedChild(hosted_toy), b"", SystemClock(), lost=lost), SystemClock()
    )


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "thread": engine_on_a_thread,
    "process": engine_behind_a_socket,
}


def hosted_toy(settings: bytes, hold: Callable[[], None]) -> Hosted:
    """A MakeEngine."""
    return Hosted(engine_on_a_thread(hold, delivers_directly=True), check_model)


def check_model(source: ModelSource, _options: LoadOptions) -> ModelPreview:
    if source.id == BROKEN:
        raise ModelLoadFailed("its weights are cut short", param="model")
    return ModelPreview(weight_bytes=7)


class EngineClient:
    """Event loop only. `batches`: everything received."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batches: list[StepBatch] = []
        self.desk = ImageDesk(InlineLane(), engine.provide_image, FILES)
        self._items = defaultdict[tuple[str, int], list[EngineItem]](list)
        self._kinds = set[tuple[str, int, type]]()
        self._arrived = asyncio.Event()

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch.events]

    @property
    def num_left_queue(self) -> int:
        return sum(batch.num_left_queue for batch in self.batches)

    def receive(self, batch: StepBatch) -> None:
        self.batches.append(batch)
        for id, choice, item in batch.items:
            if isinstance(item, ImageWanted):
                continue
            self._items[id, choice].append(item)
            self._kinds.add((id, choice, type(item)))
        self.desk.receive(batch)
        self._arrived.set()

    def items(self, id: str, choice: int = 0) -> list[EngineItem]:
        return self._items[id, choice]

    def submit(self, id: str, text: Parts = "a prompt", num_tokens: int = 4, **changes: Any) -> None:
        model = changes.pop("model", MODEL)
        asked = submission(id, model, prompt_of(text), num_tokens, **changes)
        self.desk.note(asked)
        self.engine.submit(asked)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}") from None

    async def until_told(self, id: str, kind: type, choice: int = 0) -> None:
        await self.until(lambda: (id, choice, kind) in self._kinds, f"{kind.__name__} of {id}")

    async def end(self, id: str, choice: int = 0) -> Ended:
        await self.until_told(id, Ended, choice)
        end = self.items(id, choice)[-1]
        assert isinstance(end, Ended), f"{end} came after the end of {choice_id(RequestId(id), choice)}"
        return end

    async def tokens(self, id: str, choice: int = 0) -> list[int]:
        assert (await self.end(id, choice)).error is None
        return tokens_of(self.items(id, choice))


def with_engine(make: Callable[[], Engine], work: Callable[[EngineClient], Awaitable[None]], *models: ModelId) -> None:
    """Run a test's coroutine with `models` (MODEL, if none is named) loaded."""

    async def run() -> None:
        client = EngineClient(make())
        client.engine.start(client.receive)
        try:
            for model in models or (MODEL,):
                await client.engine.load(source(model), LoadOptions())
            await work(client)
        finally:
            assert await client.engine.stop(PATIENCE_S)

    asyncio.run(run())


def source(model: ModelId) -> ModelSource:
    return ModelSource(model, "nowhere")


__all__ = (
    "BROKEN",
    "DEADLY",
    "DRAFTING",
    "ENGINES",
    "FAILING",
    "GATED",
    "MAX_BATCH",
    "MODEL",
    "PROMPT_GATE",
    "STUCK_AFTER_S",
    "UNWRITTEN",
)
__all__ += ("OPTIONS", "EngineClient", "check_model", "engine_on_a_thread", "hosted_toy", "source", "with_engine")
