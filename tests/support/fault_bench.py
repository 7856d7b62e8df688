"""An engine loop with a prefix cache, in which every neighbour of the loop can be made to fail."""

from collections.abc import Sequence
from typing import Any

from adapters.decorators.compute_faults import ComputeFaults, FaultyEngine
from adapters.fake.clock import FakeClock
from adapters.fake.engine import FakeEngine
from adapters.fake.models import FakeModels
from adapters.fake.options import HYBRID, FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from adapters.memory.block_store import MemoryBlockStore
from application.events import Event
from application.services.engine_loop import EngineLoop
from application.services.prefix.cache import CacheRules, PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_lanes import StoreLanes
from application.services.prefix.tiers import PrefixTiers
from application.services.sequence_run import Submission
from domain.ids import ModelId, RequestId
from domain.model_card import LoadOptions, ModelSource
from domain.request import GenerationRequest, TextPrompt
from domain.sampling import SamplingParams, StopRules
from domain.scheduling import StepLimits
from domain.stream import StreamItem, TextDelta
from tests.support.recording import RecordingEvents, RecordingSink
from tests.support.stepped_writer import DirectWriter

MODEL = ModelId("fake-hybrid")
WAIT_S = 20.0


class UnreliableSink(RecordingSink):
    """Raises at its next `num_failures` deliveries."""

    num_failures = 0

    def deliver(self, batch: Sequence[tuple[RequestId, StreamItem]]) -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise OSError("nobody is there")
        super().deliver(batch)


class UnreliableEvents(RecordingEvents):
    """Raises at every event while `is_failing`, having remembered it."""

    is_failing = False

    def emit(self, event: Event) -> None:
        super().emit(event)
        if self.is_failing:
            raise OSError("no telemetry")


class FaultBench:
    """`faults` are the engine's; `sink`, `events` and `store` fail when told to."""

    def __init__(self, store: MemoryBlockStore | None = None, make_cache: type[PrefixCache] = PrefixCache) -> None:
        self.inner = FakeEngine(default=FakeOptions(layout=HYBRID))
        self.faults = ComputeFaults()
        self.sink, self.events = UnreliableSink(), UnreliableEvents()
        self.store = store or MemoryBlockStore(None)
        self.hot = HotTier(1 << 28)
        clock = FakeClock(tick_ns=1000)
        tiers = PrefixTiers(self.hot, DirectWriter(self.store), StoreLanes(clock, self.events))
        self.cache = make_cache(tiers, clock, self.events, CacheRules(16, 32))
        self.loop = EngineLoop(
            lambda: FaultyEngine(self.inner, self.faults),
            self.sink,
            self.events,
            clock,
            self.cache,
            StepLimits(8, 64, 32),
            16,
        )
        self.loop.start()

    @property
    def source(self) -> ModelSource:
        source = FakeModels().find(MODEL)
        assert source is not None
        return source

    def load(self) -> None:
        self.loop.load(self.source, LoadOptions()).result(WAIT_S)

    def submit(self, id: str, text: str, num_tokens: int = 6, detokenizer: Any = None) -> None:
        self.loop.reserve()
        self.hand_over(id, text, num_tokens, detokenizer)

    def hand_over(self, id: str, text: str, num_tokens: int = 6, detokenizer: Any = None) -> None:
        """With a place that is reserved already."""
        rules = StopRules(max_tokens=num_tokens, ignore_eos=True)
        request = GenerationRequest(RequestId(id), MODEL, TextPrompt(text), SamplingParams(temperature=0), rules)
        tokenizer = FakeTokenizer()
        self.loop.submit(
            Submission(
                request,
                tokenizer.encode(text),
                num_tokens,
                1,
                detokenizer or tokenizer.detokenizer(),
                MODEL,
                tokenizer.eos_token_ids,
            )
        )

    def end(self, id: str) -> StreamItem:
        return self.sink.wait_for_end(RequestId(id), WAIT_S)[-1]

    def tokens(self, id: str) -> list[int]:
        items = self.sink.wait_for_end(RequestId(id), WAIT_S)
        return [token for item in items if isinstance(item, TextDelta) for token in item.token_ids]

    def fault_names(self) -> set[str]:
        return {event.where for event in self.events.of("FaultObserved")}  # type: ignore[union-attr]

    def check_idle(self) -> None:
        """Nothing is left of any request. Only when all have ended."""
        self.loop.unload(ModelId("none")).result(WAIT_S)  # all that came before has been done by then
        status = self.loop.status()
        assert status.is_alive, status.fault
        assert (status.num_waiting, status.num_running, status.is_busy) == (0, 0, False)
        assert self.cache.num_open() == 0
        assert self.hot.usage().num_pinned == 0
        assert [model.open_ids() for model in self.inner.loaded] == [frozenset()] * len(self.inner.loaded)


__all__ = ("MODEL", "WAIT_S", "FaultBench", "UnreliableEvents", "UnreliableSink")
