"""An idle engine: its process sends a heartbeat rarely, its thread waits long, and work ends both at once."""

import asyncio
import queue
from collections.abc import Callable

from adapters.engine_process.host import HEARTBEAT_S, IDLE_HEARTBEAT_S, EngineHost
from adapters.engine_process.messages import Ask, Begin, Stop, Submit, ToChild, encoded, raw
from adapters.fake.engine import FakeEngine
from adapters.fake.environment import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.ports.tokenizer import EncodedPrompt
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.engine_thread import CALM_AFTER_S, CALM_WAKE_S, IDLE_WAKE_S, EngineThread
from application.services.token_side.event_batcher import EventBatcher
from application.settings import Settings
from domain.scheduling.step_values import StepLimits
from interfaces.composition.cache import CacheTiers
from tests.support.engines.engine_client import GATED, OPTIONS, hosted_toy
from tests.support.engines.guards import UnboundedGuard
from tests.support.engines.sync_engine import submission
from tests.support.patience import PATIENCE_S
from tests.support.processes.timed_loop import TimedLoop

WORK = submission("a", GATED, EncodedPrompt.of_text((1, 2)), 4)


class Line:
    """A Channel whose other end is the test: `say` is what the parent sends, and what it is sent is lost."""

    num_unsent_bytes = 0

    def __init__(self, _sock: object, received: Callable[[bytes], None], *_rest: object) -> None:
        self._received = received

    def say(self, message: ToChild) -> None:
        self._received(bytes(encoded(message)))

    def send(self, _data: object) -> None: ...

    def close(self) -> None: ...


def test_heartbeats_are_rare_until_work_comes() -> None:
    loop, lines = TimedLoop(), list[Line]()

    def open_line(*arguments: object) -> Line:
        lines.append(Line(*arguments))  # type: ignore[arg-type]
        return lines[0]

    async def run() -> None:
        hosting = asyncio.create_task(EngineHost(hosted_toy, open_line).run(None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        (line,) = lines
        line.say(Begin(b""))
        line.say(Ask(0, "stats", raw(())))
        assert loop.delays == [IDLE_HEARTBEAT_S], "a reading is no work"
        line.say(Submit(WORK))
        line.say(Submit(WORK))
        assert loop.delays == [IDLE_HEARTBEAT_S, HEARTBEAT_S], "one, however much work comes"
        line.say(Stop(PATIENCE_S))
        assert await hosting == 0

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())


class NotedInbox(queue.SimpleQueue[object]):
    """An inbox that notes how long it is waited for."""

    def __init__(self) -> None:
        self.waits: queue.SimpleQueue[float | None] = queue.SimpleQueue()

    def get(self, block: bool = True, timeout: float | None = None) -> object:
        if block:
            self.waits.put(timeout)
        return super().get(block, timeout)


def test_the_thread_waits_long_once_what_follows_work_has_ended() -> None:
    async def run() -> None:
        clock, limits = FakeClock(start_ns=0), StepLimits(3, 64, 32)
        events = EventBatcher(clock)
        tiers = CacheTiers(Settings(), limits, MemoryBlockStore(None), events, clock)
        engine = EngineThread(
            EngineLoop(batcher=events, prefix_cache=tiers.prefix_cache, guard=UnboundedGuard(limits), limits=limits),
            make_backend=lambda: FakeEngine(OPTIONS),
            close_cache=lambda: tiers.close(PATIENCE_S),
        )
        inbox = engine._inbox = NotedInbox()  # type: ignore[assignment]
        engine.start(lambda _batch: None)

        def until(seconds: float) -> None:
            while inbox.waits.get(timeout=PATIENCE_S) != seconds:
                pass

        until(IDLE_WAKE_S)
        clock.advance(CALM_AFTER_S)
        engine.wake()
        until(CALM_WAKE_S)
        engine.submit(WORK)  # for a model that is not loaded: it ends at once
        until(IDLE_WAKE_S)
        assert await engine.stop(PATIENCE_S)

    asyncio.run(run())
