"""A request that waits for a place in the batch has its prefix fetched meanwhile."""

import threading
from collections.abc import Sequence

from adapters.decorators.forwarding_store import ForwardingStore
from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from adapters.memory.block_store import MemoryBlockStore
from application.ports.engine import Ended
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from domain.ids import GroupIndex, ModelId, SequenceId
from domain.models.model_card import LoadOptions
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import Record, RecordKey
from domain.scheduling.step_values import StepLimits
from tests.support.engines.sync_engine import Inbox, SyncEngine, submission
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate
from tests.support.processes.lanes import InlineLane
from tests.support.stores.stepped_writer import DirectWriter
from tests.support.telemetry.recording import RecordingEvents

MODEL = ModelId("fake-hybrid")
WAIT_S = PATIENCE_S


class WatchedStore(ForwardingStore):
    """Tells when something is read."""

    def __init__(self) -> None:
        super().__init__(MemoryBlockStore(None))
        self.was_read = threading.Event()

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        self.was_read.set()
        return super().get(keys, groups)


def test_a_queued_requests_prefix_is_fetched_before_it_is_admitted() -> None:
    store, hot, inbox, events = WatchedStore(), HotTier(1 << 28), Inbox(), RecordingEvents()
    lane = InlineLane()
    stored = StoreTier(FakeClock(), events, DirectWriter(store), readers=lane, upkeep=lane)
    cache = PrefixCache(PrefixTiers(hot, stored, hashing=lane), BlockGrid(16, 32))
    # The running one waits for the other to be submitted, takes 48 steps in which its prefix can be fetched, and
    # keeps its place until that was seen.
    submitted, seen = Gate("decode", 2), Gate("decode", 50)

    def hook(operation: str, id: SequenceId | None, count: int) -> None:
        submitted(operation, id, count)
        seen(operation, id, count)

    engine = FakeEngine(default=FakeOptions(hook=hook))
    limits = StepLimits(1, 32, 32)
    loop = SyncEngine(lambda: engine, prefix_cache=cache, limits=limits, clock=FakeClock(), inbox=inbox)
    loop.start()

    def submit(id: str, text: str, num_tokens: int) -> None:
        loop.submit(submission(id, MODEL, FakeTokenizer().encode(text), num_tokens))

    try:
        source = FakeModels().find(MODEL)
        assert source is not None
        loop.load(source, LoadOptions()).result(WAIT_S)
        submit("first", "a prompt to be seen again " * 8, 2)
        inbox.wait_for_end("first", WAIT_S)
        hot.resize(0)
        hot.resize(1 << 28)
        store.was_read.clear()
        submit("running", "something else", 100)
        submit("again", "a prompt to be seen again " * 8, 2)
        submitted.open()
        assert store.was_read.wait(WAIT_S)
        assert loop.status().num_waiting == 1  # fetched, and still in the queue
        seen.open()
        end = inbox.wait_for_end("again", WAIT_S)[-1]
    finally:
        submitted.open()
        seen.open()
        assert loop.stop(WAIT_S)
    assert isinstance(end, Ended)
    assert end.usage.computed_tokens == 1
