"""A server finds in the shared store what another one computed, and goes on without it where that is late or bad."""

from dataclasses import replace
from random import Random

import pytest

from adapters.fake import ATTENTION, WINDOWED
from adapters.memory.block_store import MemoryBlockStore
from application.events import SharedStoreUsed
from application.ports.block_store import EncodedPayload
from application.ports.cache_stats import Cleared
from application.services.prefix.shared.tier import MIN_ASKED_TOKENS, RECORDS_PER_CALL
from domain.ids import ModelId
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.fingerprint import EVERYTHING
from domain.prefix.prompt_content import EncodedPrompt, ForkKind, ForkPoint
from domain.prefix.record import BlockKey, Record
from tests.support.processes.lanes import HeldLane
from tests.support.stores.cache_driver import BLOCK, KINDS, OPTIONS, CacheDriver, plain_answer
from tests.support.stores.shared_stores import DEADLINE_S, FaultySharedStore, SharedFaults, SharedMemory

PROMPT = list(range(100, 740))


class Fleet:
    """Servers that share `memory`, each with a store of its own."""

    def __init__(self, layout: StateLayout = ATTENTION) -> None:
        self.memory, self.faults = SharedMemory(), SharedFaults()
        self.options = replace(OPTIONS, layout=layout)

    def server(self, calls: HeldLane | None = None, hot_bytes: int = 1 << 30, **others: int) -> CacheDriver:
        shared = FaultySharedStore(self.memory, Random(1), self.faults)
        driver = CacheDriver(
            self.options, hot_bytes=hot_bytes, store=MemoryBlockStore(), shared=shared, calls=calls, **others
        )
        if calls is not None:
            assert calls.run() == 1  # the trial
        return driver

    def known(self, prompt: list[int] = PROMPT, **asked: bool) -> CacheDriver:
        """A server that has computed a prompt and shared it."""
        first = self.server()
        first.run(prompt, **asked)
        first.share()
        return first

    def answer(self, prompt: list[int] = PROMPT) -> list[int]:
        return plain_answer(self.options, prompt)


@KINDS
def test_what_another_server_computed_is_taken_over(layout: StateLayout) -> None:
    fleet = Fleet(layout)
    fleet.known()
    second = fleet.server()
    job = second.run(PROMPT)
    assert job.output == fleet.answer()
    assert dict(job.explanation.reused) == {"shared": len(PROMPT) - 1}
    assert job.explanation.reason is StopReason.LAST_TOKEN
    assert "; shared=639; computed=1; " in job.explanation.header()
    second.check_idle()


@KINDS
def test_what_arrived_is_kept_here_and_not_sent_back(layout: StateLayout) -> None:
    fleet = Fleet(layout)
    fleet.known()
    second = fleet.server()
    second.run(PROMPT)
    assert second.tiers.shared is not None
    assert second.tiers.shared.stats().queued <= 2, "more than the end of its own answer"
    fleet.memory.records.clear()
    assert second.run(PROMPT).explanation.reused == {"hot": len(PROMPT) - 1}
    assert second.store is not None
    restarted = CacheDriver(fleet.options, store=second.store)
    assert restarted.run(PROMPT).explanation.reused == {"store": len(PROMPT) - 1}


def test_the_local_store_gets_what_arrived_as_it_is() -> None:
    """Its codec need not compress again what another server's has."""
    fleet = Fleet()
    fleet.known()
    second = fleet.server()
    assert second.store is not None
    put: list[Record] = []
    stores = second.store.put
    second.store.put = lambda records: (put.extend(records), stores(records))[1]  # type: ignore[method-assign]
    second.run(PROMPT)
    arrived = [record for record in put if all(isinstance(one, EncodedPayload) for one in record.groups.values())]
    assert sum(len(record.key_ids) for record in arrived) == len(PROMPT) - 1


@KINDS
def test_the_next_turn_at_another_server_computes_what_is_new(layout: StateLayout) -> None:
    fleet = Fleet(layout)
    prompt = list(PROMPT)
    servers = [fleet.server() for _ in range(3)]
    for turn in range(6):
        server = servers[turn % 3]
        fork = ForkPoint(len(prompt) - 2, ForkKind.NEXT_TURN)
        job = server.run(prompt, 5, (fork,))
        assert job.output == plain_answer(fleet.options, prompt, 5)
        if turn:
            assert job.explanation.num_computed <= 20 + 5 + 1, job.explanation
        server.share()
        prompt = [*prompt, *job.output, *range(5000 + 20 * turn, 5020 + 20 * turn)]


def test_a_server_that_knows_nearly_all_does_not_ask() -> None:
    fleet = Fleet()
    first = fleet.known()
    num_asked = len(first.events.of(SharedStoreUsed))
    first.run([*PROMPT[: -MIN_ASKED_TOKENS // 2], 7, 8, 9])
    first.run(PROMPT)
    assert len(first.events.of(SharedStoreUsed)) == num_asked
    first.run([*PROMPT, *range(MIN_ASKED_TOKENS + 1)])
    assert len(first.events.of(SharedStoreUsed)) == num_asked + 1


def test_a_prompt_nobody_has_is_asked_for_once() -> None:
    fleet = Fleet()
    server = fleet.server()
    job = server.run(PROMPT)
    assert job.explanation.reason is StopReason.NEVER_SEEN
    asked = [event for event in server.events.of(SharedStoreUsed) if event.operation == "ask"]
    assert [event.outcome for event in asked] == ["nothing"]


@KINDS
def test_the_local_part_is_read_locally(layout: StateLayout) -> None:
    fleet = Fleet(layout)
    second = fleet.server()
    second.run(PROMPT[: 10 * BLOCK])
    fleet.known()
    job = second.run(PROMPT)
    assert job.output == fleet.answer()
    assert sum(job.explanation.reused.values()) == len(PROMPT) - 1
    assert job.explanation.reused["hot"] >= 9 * BLOCK


@KINDS
def test_a_store_that_does_not_answer_costs_the_deadline_and_is_named(layout: StateLayout) -> None:
    fleet, calls = Fleet(layout), HeldLane()
    fleet.known()
    second = fleet.server(calls)
    job = second.begin(PROMPT)
    assert not second.step(job)
    second.clock.advance(DEADLINE_S)
    second.finish(job)
    assert job.output == fleet.answer()
    assert job.explanation.reason is StopReason.SLOW_SHARED
    assert job.explanation.reused == {}
    # The breaker is open: the next one is not even asked.
    other = second.run([*PROMPT[:5], *PROMPT])
    assert other.explanation.reason is not StopReason.SLOW_SHARED
    calls.run()
    second.check_idle()


@KINDS
@pytest.mark.parametrize("hot_bytes", [0, 1 << 30])
def test_what_arrived_before_the_deadline_is_used(layout: StateLayout, hot_bytes: int) -> None:
    fleet, calls = Fleet(layout), HeldLane()
    fleet.known()
    second = fleet.server(calls, hot_bytes)
    job = second.begin(PROMPT)
    assert not second.step(job)
    calls.run(1)  # what there is
    assert not second.step(job)
    calls.run(2)  # two of its reads
    assert not second.step(job)
    second.clock.advance(3600)
    second.finish(job)
    assert job.output == fleet.answer()
    assert job.explanation.reason is StopReason.SLOW_SHARED
    is_kept = hot_bytes and layout in (ATTENTION, WINDOWED)
    assert job.explanation.stopped_at == (2 * RECORDS_PER_CALL * BLOCK if is_kept else 0)
    calls.run()
    second.check_idle()


@KINDS
def test_time_goes_on_while_state_arrives_faster_than_it_is_computed(layout: StateLayout) -> None:
    fleet, calls = Fleet(layout), HeldLane()
    fleet.known()
    second = fleet.server(calls)
    assert second.tiers.shared is not None
    second.tiers.shared.note_pace("toy", 1000, 10 * 1_000_000_000)  # 10 ms a token
    job = second.begin(PROMPT)
    while not job.is_done:
        if not second.step(job):
            assert calls.run(1)
            second.clock.advance(DEADLINE_S / 2)
    assert job.output == fleet.answer()
    assert job.explanation.reused == {"shared": len(PROMPT) - 1}


@KINDS
def test_a_hole_in_the_chain_ends_reuse_there(layout: StateLayout) -> None:
    fleet = Fleet(layout)
    fleet.known()
    keys = [key for _, key in fleet.memory.records if isinstance(key, BlockKey)]
    del fleet.memory.records["", keys[20]]
    second = fleet.server()
    job = second.run(PROMPT)
    assert job.output == fleet.answer()
    assert job.explanation.stopped_at <= len(PROMPT) - 1
    second.check_idle()


@pytest.mark.parametrize("fault", ["evictions", "forgeries"])
@KINDS
def test_records_that_are_gone_or_forged_when_they_are_read(layout: StateLayout, fault: str) -> None:
    fleet = Fleet(layout)
    fleet.known()
    setattr(fleet.faults, fault, 0.3)
    second = fleet.server()
    job = second.run(PROMPT)
    assert job.output == fleet.answer()
    outcomes = {event.outcome for event in second.events.of(SharedStoreUsed) if event.operation == "read"}
    assert {"evictions": "missing", "forgeries": "rejected"}[fault] in outcomes
    second.check_idle()
    # What it computed for want of them is shared again.
    second.share()
    setattr(fleet.faults, fault, 0.0)
    third = fleet.server()
    assert third.run(PROMPT).explanation.reused == {"shared": len(PROMPT) - 1}


def test_a_request_that_must_not_be_stored_is_not_shared() -> None:
    fleet = Fleet()
    fleet.known(persist=False)
    assert not fleet.memory.records


def test_other_salts_find_nothing() -> None:
    fleet = Fleet()
    first = fleet.server()
    first.run(PROMPT, salt="alice")
    first.share()
    assert fleet.server().run(PROMPT, salt="bob").explanation.reused == {}
    assert fleet.server().run(PROMPT, salt="alice").explanation.reused == {"shared": len(PROMPT) - 1}


def test_clearing_clears_the_shared_store_too() -> None:
    fleet = Fleet()
    first = fleet.known()
    first.run([1, *PROMPT], salt="alice")
    assert first.cache.clear(None, "alice").problem == ""
    first.share()
    assert all(info.model == "toy" for info in fleet.memory.infos.values())
    assert fleet.server().run([1, *PROMPT], salt="alice").explanation.reused == {}
    assert fleet.server().run(PROMPT).explanation.reused == {"shared": len(PROMPT) - 1}
    first.cache.clear(None, None)
    assert not fleet.memory.records


def test_clearing_says_when_the_shared_store_could_not_be_reached() -> None:
    fleet = Fleet()
    first = fleet.known()
    fleet.faults.is_gone = True
    assert "the shared store" in first.cache.clear(None, None).problem


def test_nothing_is_asked_while_it_is_cleared() -> None:
    fleet = Fleet()
    fleet.known()
    second = fleet.server()
    assert second.tiers.shared is not None
    found: list[object] = []

    def clear_own() -> Cleared:
        found.append(second.run(PROMPT).explanation.reused)
        return Cleared()

    second.tiers.shared.clear(EVERYTHING, clear_own)
    assert found == [{}]


@KINDS
def test_an_explanation_foretells_it(layout: StateLayout) -> None:
    fleet = Fleet(layout)
    fleet.known()
    second = fleet.server()
    told = second.cache.explain(ModelId("toy"), EncodedPrompt.of_text(PROMPT))
    assert (told.reused, told.reason) == ({"shared": len(PROMPT) - 1}, StopReason.LAST_TOKEN)
    assert second.run(PROMPT).explanation.reused == told.reused


def test_an_explanation_says_that_it_is_not_asked() -> None:
    fleet, calls = Fleet(), HeldLane()
    fleet.known()
    second = CacheDriver(
        fleet.options,
        store=MemoryBlockStore(),
        shared=FaultySharedStore(fleet.memory, Random(1), fleet.faults),
        calls=calls,
    )
    told = second.cache.explain(ModelId("toy"), EncodedPrompt.of_text(PROMPT))
    assert "the shared store is not asked" in told.note
