"""An engine with a prefix cache, in which every neighbour of it can be made to fail."""

from collections.abc import Callable

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.options import HYBRID, FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from adapters.memory.block_store import MemoryBlockStore
from application.ports.compute import ComputeEngine
from application.ports.engine import Ended
from application.services.lane import Lane
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from application.services.token_side.event_batcher import EventBatcher
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.prompt_content import BlockGrid
from domain.scheduling.step_values import StepLimits
from tests.support.engines.compute_faults import ComputeFaults, FaultyEngine
from tests.support.engines.sync_engine import Inbox, SyncEngine, submission
from tests.support.patience import PATIENCE_S
from tests.support.stores.stepped_writer import DirectWriter

MODEL = ModelId("fake-hybrid")
WAIT_S = PATIENCE_S


class FaultBench:
    """`faults` are the backend's; `store` fails on request."""

    def __init__(
        self,
        store: MemoryBlockStore | None = None,
        make_cache: type[PrefixCache] = PrefixCache,
        make_backend: Callable[[], ComputeEngine] | None = None,
    ) -> None:
        self.inner = FakeEngine(default=FakeOptions(layout=HYBRID))
        self.faults = ComputeFaults()
        self.inbox = Inbox()
        self.store = store or MemoryBlockStore(None)
        self.hot = HotTier(1 << 28)
        clock = self.clock = FakeClock(tick_ns=1000)
        events = EventBatcher(clock)
        stored = StoreTier(clock, events, DirectWriter(self.store))
        self.cache = make_cache(PrefixTiers(self.hot, stored, hashing=Lane("hash", 1)), BlockGrid(16, 32))
        self.loop = SyncEngine(
            make_backend or (lambda: FaultyEngine(self.inner, self.faults)),
            prefix_cache=self.cache,
            limits=StepLimits(8, 64, 32),
            clock=clock,
            inbox=self.inbox,
            batcher=events,
        )
        self.loop.start()

    @property
    def source(self) -> ModelSource:
        source = FakeModels().find(MODEL)
        assert source is not None
        return source

    def load(self) -> None:
        self.loop.load(self.source, LoadOptions()).result(WAIT_S)

    def submit(self, id: str, text: str, num_tokens: int = 6, num_choices: int = 1, model: ModelId = MODEL) -> None:
        prompt = FakeTokenizer().encode(text)
        self.loop.submit(submission(id, model, prompt, num_tokens, num_choices=num_choices))

    def end(self, id: str) -> Ended:
        end = self.inbox.wait_for_end(id, WAIT_S)[-1]
        assert isinstance(end, Ended)
        return end

    def tokens(self, id: str) -> list[int]:
        return self.loop.tokens(id, WAIT_S)

    def fault_names(self) -> set[str]:
        return {event.where for event in self.inbox.events.of("FaultObserved")}

    def check_idle(self) -> None:
        """Nothing is left of any request. Only when all have ended."""
        self.loop.unload(ModelId("none")).result(WAIT_S)  # all that came before has been done by then
        status = self.loop.status()
        assert status.is_alive, status.fault
        assert (status.num_waiting, status.num_running, status.is_busy) == (0, 0, False)
        assert not self.cache.tiers.open
        assert self.hot.usage().num_pinned == 0
        assert [model.open_ids() for model in self.inner.loaded] == [frozenset()] * len(self.inner.loaded)
