"""Servers that share a store, on toy models: right answers whatever the store does, and nothing lost while it works.

Each run draws delays, failures, evictions in the middle of chains, forged records, a store that is gone or full for a
while, restarts and clearings. Two fleets use one store.
"""

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import pytest

from adapters.memory.block_store import MemoryBlockStore
from application.events import SharedStoreUsed
from application.ports.engine import Ended, Submission
from application.ports.tokenizer import EncodedPrompt
from domain.ids import RequestId
from domain.request.request import choice_id
from domain.request.sampling import SamplingParams
from tests.simulation.simulator import plain_answer
from tests.simulation.workload import SALTS, Conversation, Workload
from tests.simulation.world import World, draw_plan
from tests.support.effort import drawn
from tests.support.engines.sync_engine import tokens_of, usage_of
from tests.support.stores.faulty_stores import FaultPlan
from tests.support.stores.shared_stores import DEADLINE_S, FaultySharedStore, SharedFaults, SharedMemory, pump

NUM_SERVERS = 3
NUM_RUNS = drawn(32)


@dataclass
class Server:
    world: World
    store: MemoryBlockStore
    fleet: str


class Fleet:
    """Servers of two fleets, which share one memory; the last server is of the other fleet."""

    def __init__(self, seed: int, faults: SharedFaults) -> None:
        self.random = Random(seed)
        self.faults = faults
        plan = draw_plan(self.random)
        while plan.is_exact:
            plan = draw_plan(self.random)
        # The shared store's faults alone: what the others do is simulated elsewhere.
        self.plan = replace(
            plan,
            models={id: replace(options, images=None) for id, options in plan.models.items()},
            hot_bytes=self.random.choice((0, 60_000, 1 << 30)),
            quota_bytes=1 << 30,
            queue_bytes=1 << 30,
            faults=FaultPlan(),
            failure_rate=0.0,
            defect_rate=0.0,
            guarded_bytes=None,
        )
        self.memory = SharedMemory()
        fleets = ["ours"] * (NUM_SERVERS - 1) + ["theirs"]
        self.servers = [self._started(MemoryBlockStore(1 << 30), fleet) for fleet in fleets]
        self.workload = Workload(self.random, list(self.plan.models))
        self.open: dict[RequestId, tuple[Server, Submission, Conversation]] = {}
        self.counts: Counter[str] = Counter()
        self.num_requests = 0

    def _started(self, store: MemoryBlockStore, fleet: str) -> Server:
        shared = FaultySharedStore(self.memory, self.random, self.faults, fleet)
        world = World(self.plan, store, self.random, shared)
        world.lane.run()  # the trial that opens the way
        return Server(world, store, fleet)

    def play(self, num_actions: int) -> Counter[str]:
        actions = [(self.ask, 14), (self.step, 120), (self.work, 60), (self.write, 40), (self.wait, 10)]
        actions += [(self.restart, 1), (self.outage, 1), (self.clear, 1)]
        kinds, weights = zip(*actions, strict=True)
        for action in self.random.choices(kinds, weights, k=num_actions):
            action()
            self.settle()
        for server in self.servers:
            self.finish(server)
        return self.counts

    def ask(self) -> None:
        for talk, prompt in self.workload.draw(self.random.choice((1, 2))):
            self.submit(self.random.choice(self.servers), talk, prompt)

    def submit(self, server: Server, talk: Conversation, prompt: EncodedPrompt, max_new_tokens: int = 20) -> RequestId:
        self.num_requests += 1
        sampling = SamplingParams(temperature=0.0, seed=7)
        submission = Submission(
            id=RequestId(f"r{self.num_requests}"),
            model=talk.model,
            prompt=prompt,
            sampling=sampling,
            seed=7,
            max_new_tokens=max_new_tokens,
            eos_token_ids=frozenset({self.plan.models[talk.model].eos_id}),
            cache_salt=talk.salt,
        )
        self.open[submission.id] = server, submission, talk
        server.world.add(submission)
        return submission.id

    def step(self) -> None:
        server = self.random.choice(self.servers)
        if server.world.loop.is_busy:
            server.world.loop.step()

    def work(self) -> None:
        self.random.choice(self.servers).world.lane.run(self.random.choice((1, 3, None)))

    def write(self) -> None:
        server = self.random.choice(self.servers)
        assert server.world.writer is not None
        assert server.world.shared is not None
        server.world.writer.pump(self.random.randint(1, 20))
        pump(server.world.shared)

    def wait(self) -> None:
        world = self.random.choice(self.servers).world
        world.clock.advance(self.random.choice((DEADLINE_S, 0.01, 2.0)))
        world.lane.run()

    def outage(self) -> None:
        if self.faults.failures:
            self.faults.is_gone = self.random.random() < 0.3
            self.faults.is_full = self.random.random() < 0.3

    def restart(self) -> None:
        at = self.random.randrange(NUM_SERVERS)
        self.finish(self.servers[at])
        self.servers[at] = self._started(self.servers[at].store, self.servers[at].fleet)

    def clear(self) -> None:
        server = self.random.choice(self.servers)
        server.world.cache.clear(None, self.random.choice((None, *SALTS)))
        self.counts["clearings"] += 1

    def finish(self, server: Server) -> None:
        for _ in range(20_000):
            if not server.world.loop.is_busy:
                break
            server.world.step()
            self.settle()
        assert not [id for id, (one, _, _) in self.open.items() if one is server], "a request never ended"
        server.world.lane.run()
        assert server.world.writer is not None
        assert server.world.shared is not None
        server.world.writer.pump()
        pump(server.world.shared)
        server.world.check_idle()

    def settle(self) -> None:
        for id, (server, submission, talk) in list(self.open.items()):
            items = server.world.inbox.items.get(choice_id(id, 0), [])
            if items and isinstance(items[-1], Ended):
                del self.open[id]
                assert items[-1].error is None
                output = tokens_of(items)
                expected = plain_answer(self.plan.models[talk.model], submission, 7, self.plan.limits)
                assert output == expected, f"{id} got a wrong token"
                self.workload.answered(talk, output)
                usage = usage_of(items)
                self.counts["requests"] += 1
                self.counts.update({f"from {tier}": number for tier, number in usage.reused.items()})
                self.counts["computed"] += usage.prompt_tokens - usage.reused_tokens

    def used(self, operation: str) -> Counter[str]:
        """Events of the shared store, by outcome."""
        found: Counter[str] = Counter()
        for server in self.servers:
            for event in server.world.events.of("SharedStoreUsed"):
                assert isinstance(event, SharedStoreUsed)
                if event.operation == operation:
                    found[event.outcome] += 1
        return found


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_answers_are_right_whatever_the_store_does(seed: int) -> None:
    random = Random(seed)
    chances = (0.0, 0.1, 0.3)
    faults = SharedFaults(*(random.choice(chances) for _ in range(2)), random.choice((0.03, 2.0)))
    faults.evictions, faults.forgeries = random.choice(chances), random.choice(chances)
    fleet = Fleet(seed, faults)
    counts = fleet.play(600)
    assert counts["requests"] > 0


def test_what_was_forged_or_evicted_is_counted_and_computed() -> None:
    total: Counter[str] = Counter()
    for seed in range(3):
        fleet = Fleet(seed, SharedFaults(evictions=0.2, forgeries=0.2))
        fleet.play(600)
        total += fleet.used("read")
    assert total["read"] > 0
    assert total["rejected"] > 0
    assert total["missing"] > 0
