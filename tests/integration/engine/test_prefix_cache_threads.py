"""The prefix cache with its real threads: engine loop, write-behind, readers, and clients that share prefixes."""

from dataclasses import dataclass
from random import Random

import pytest

from adapters.fake import LAYOUTS, FakeClock, FakeEngine, FakeOptions, FakeTokenizer
from adapters.memory.block_store import MemoryBlockStore
from application.ports.engine import Ended
from application.ports.tokenizer import EncodedPrompt
from application.services.lane import Lane
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from application.services.prefix.write_behind import WriteBehind
from application.services.token_side.event_batcher import EventBatcher
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.prompt_content import BlockGrid
from domain.scheduling.step_values import StepLimits
from tests.support.engines.sync_engine import Inbox, SyncEngine, submission, tokens_of
from tests.support.patience import PATIENCE_S
from tests.support.stores.cache_driver import BLOCK, GRID, VOCAB, plain_answer
from tests.support.stores.faulty_stores import FaultInjectingBlockStore, FaultPlan

WAIT_S = PATIENCE_S
MODEL = ModelId("toy")


@dataclass
class Server:
    """Everything of one process, on a store that may outlive it."""

    loop: SyncEngine
    hot: HotTier
    cache: PrefixCache
    writer: WriteBehind
    tier: StoreTier
    engine: FakeEngine

    @classmethod
    def start(cls, options: FakeOptions, memory: MemoryBlockStore, faults: FaultPlan, hot_bytes: int) -> "Server":
        clock = FakeClock(tick_ns=10)
        events = EventBatcher(clock)
        store = FaultInjectingBlockStore(memory, faults)
        writer = WriteBehind(store, events, clock, max_bytes=100_000)
        hot, tier = HotTier(hot_bytes), StoreTier(clock, events, writer)
        cache = PrefixCache(PrefixTiers(hot, tier, hashing=Lane("hash", 1)), BlockGrid(BLOCK, GRID))
        engine = FakeEngine(default=options)
        limits = StepLimits(4, 2 * GRID, GRID)
        loop = SyncEngine(lambda: engine, prefix_cache=cache, limits=limits, clock=clock, inbox=Inbox(), batcher=events)
        loop.start()
        loop.load(ModelSource(MODEL, "nowhere"), LoadOptions()).result(WAIT_S)
        return cls(loop, hot, cache, writer, tier, engine)

    def submit(self, id: str, prompt: list[int], num_output: int) -> None:
        encoded, eos = EncodedPrompt.of_text(tuple(prompt)), FakeTokenizer().eos_token_ids
        self.loop.submit(submission(id, MODEL, encoded, num_output, eos_token_ids=eos, ignore_eos=False))

    def tokens(self, id: str) -> list[int]:
        items = self.loop.inbox.wait_for_end(id, WAIT_S)
        assert isinstance(items[-1], Ended)
        assert items[-1].error is None
        return tokens_of(items)

    def stop(self) -> None:
        assert self.loop.stop(WAIT_S)
        self.tier.close()
        assert self.tier.join(WAIT_S)
        counts = self.writer.close(WAIT_S)
        assert counts.queued == 0
        assert self.hot.check_integrity() == []
        assert self.hot.usage().num_pinned == 0
        assert not self.cache.tiers.open
        assert all(not model.open_ids() for model in self.engine.loaded)


@pytest.mark.parametrize(("name", "hot_bytes"), [("attention", 1 << 30), ("hybrid", 30_000), ("everything", 30_000)])
def test_clients_that_share_prefixes_get_their_own_answers(name: str, hot_bytes: int) -> None:
    random = Random(f"{name} {hot_bytes}")
    options = FakeOptions(layout=LAYOUTS[name], vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
    memory = MemoryBlockStore(150_000)
    systems = [[random.randrange(VOCAB) for _ in range(90)] for _ in range(2)]
    for life in range(3):
        faults = FaultPlan(life, get_misses=0.05, put_refusals=0.05) if life == 1 else FaultPlan()
        server = Server.start(options, memory, faults, hot_bytes)
        asked: dict[str, list[int]] = {}
        for number in range(16):
            system = random.choice(systems)
            prompt = [
                *system[: random.choice((40, 90))],
                *(random.randrange(VOCAB) for _ in range(random.randint(1, 40))),
            ]
            if asked and random.random() < 0.4:
                prompt = random.choice(list(asked.values()))
            asked[f"{life}-{number}"] = prompt
            server.submit(f"{life}-{number}", prompt, 20)
        server.submit("cancelled", systems[0] * 3, 5000)
        server.loop.cancel("cancelled")
        for id, prompt in asked.items():
            assert server.tokens(id) == plain_answer(options, prompt, 20)
        server.stop()
        assert memory.check_integrity(payloads=True).problems == ()
    assert memory.usage().stored_bytes > 0
