"""The engine loop on the toy engine: ends of answers, unloading, fetching while queued."""

import threading
from collections.abc import Sequence

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from adapters.memory.block_store import MemoryBlockStore
from application.events import ModelLoaded, ModelUnloaded, StepCompleted
from application.ports.engine import Ended
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from domain.ids import GroupIndex, ModelId, SequenceId
from domain.models.model_card import LoadOptions
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import Record, RecordKey
from domain.request.request import FinishReason
from domain.scheduling.step_values import StepLimits
from tests.support.engines.drafters import CHEAP, KnowingDrafter
from tests.support.engines.stepped_engine import MODEL, SteppedEngine
from tests.support.engines.sync_engine import Inbox, SyncEngine, submission
from tests.support.http.servers.fake_service import wait_until
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate
from tests.support.processes.lanes import InlineLane
from tests.support.stores.forwarding_store import ForwardingStore
from tests.support.stores.stepped_writer import DirectWriter
from tests.support.telemetry.recording import RecordingEvents

PROMPT = b"a prompt of several tokens"
(END,) = FakeTokenizer().eos_token_ids


def test_no_token_that_would_end_the_answer_comes_before_min_tokens() -> None:
    """Also one that only the tokenizer knows as an end."""
    engine = SteppedEngine(FakeOptions(eos_id=65, reply=lambda _prompt: [END] * 20))
    ends = frozenset({65, END})
    engine.submit("a", PROMPT, 9, min_tokens=4, eos_token_ids=ends, ignore_eos=False)
    engine.run()
    tokens = engine.tokens("a")
    assert not ends & set(tokens[:4])
    assert tokens[4:] == [END]


def test_an_answer_ends_inside_a_draft() -> None:
    """Whichever token of it that is: the drafter knows what would follow the end."""
    for length in range(1, 12):
        answer = [65 + index for index in range(length)]
        script = [*answer, END, *[66] * 50]
        drafter = KnowingDrafter("right", 0)
        drafter.learn(PROMPT, script)
        engine = SteppedEngine(
            FakeOptions(reply=lambda _prompt, script=script: script, drafter=drafter, width_costs=CHEAP)
        )
        engine.submit("a", PROMPT, 40, eos_token_ids=frozenset({END}), ignore_eos=False)
        engine.run()
        assert engine.tokens("a") == [*answer, END]
        end = engine.end("a")
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, length + 1)
        assert sum(event.num_decode_tokens for event in engine.events(StepCompleted)) == length + 1


def test_loading_and_unloading_report_the_memory_of_the_backend() -> None:
    engine = SteppedEngine(FakeOptions(weight_bytes=700))
    engine.loop.unload(MODEL)
    engine.run()
    events = engine.events(ModelLoaded, ModelUnloaded)
    assert [(type(event), event.active_bytes) for event in events] == [(ModelLoaded, 700), (ModelUnloaded, 0)]


HYBRID_MODEL = ModelId("fake-hybrid")
WAIT_S = PATIENCE_S


class WatchedStore(ForwardingStore):
    """Sets an event when something is read."""

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
        loop.submit(submission(id, HYBRID_MODEL, FakeTokenizer().encode(text), num_tokens))

    try:
        source = FakeModels().find(HYBRID_MODEL)
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
        wait_until(lambda: loop.status().num_waiting == 1, "the step in which it was fetched to be told")
        seen.open()
        end = inbox.wait_for_end("again", WAIT_S)[-1]
    finally:
        submitted.open()
        seen.open()
        assert loop.stop(WAIT_S)
    assert isinstance(end, Ended)
    assert end.usage.computed_tokens == 1
