"""The prefix cache on stores and models that lose, lie or refuse: time is lost, never an answer."""

from collections.abc import Sequence
from dataclasses import replace

from adapters.fake import ATTENTION, WINDOWED, FakeModel
from adapters.memory.block_store import MemoryBlockStore
from application.events import FaultObserved
from domain.errors import ComputeFailed
from domain.ids import GroupIndex, ModelId, SequenceId
from domain.models.model_card import ModelSource
from domain.models.state_layout import HitPolicy, StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.record import GroupPayloads, HostPayload, Record, RecordKey, SnapshotKey
from tests.support.engines.compute_faults import ComputeFaults, faulty_model
from tests.support.processes.lanes import HeldLane
from tests.support.stores.cache_driver import BLOCK, KINDS, CacheDriver, options, plain_answer
from tests.support.stores.store_records import empty

PROMPT = list(range(100, 300))


@KINDS
def test_a_record_evicted_between_lookup_and_fetch_is_recomputed(layout: StateLayout) -> None:
    store = MemoryBlockStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    lane = HeldLane()
    driver = CacheDriver(options(layout), store=store, lane=lane)
    job = driver.begin(PROMPT)
    assert not driver.step(job)
    assert empty(store, store.usage().namespaces[0].info)
    lane.run()
    assert driver.num_wakes > 0
    driver.finish(job)
    assert job.computed == len(PROMPT) - 1
    assert job.output == plain_answer(options(layout), PROMPT)
    lane.run()
    driver.check_idle()


class LyingStore(MemoryBlockStore):
    """Answers every read with the records of another prompt's positions, as a corrupt index would."""

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        return list(reversed(super().get(keys, groups)))


@KINDS
def test_records_that_are_not_what_their_key_says_are_not_used(layout: StateLayout) -> None:
    store = LyingStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store)
    job = driver.run(PROMPT)
    assert job.output == plain_answer(options(layout), PROMPT)


class ScarceStore(MemoryBlockStore):
    """Has no memory for the next reads."""

    num_failures = 0

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        if self.num_failures:
            self.num_failures -= 1
            raise MemoryError("no room")
        return super().get(keys, groups)


class ShrunkStore(MemoryBlockStore):
    """Keeps every record and loses the contents of its state."""

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        empty = HostPayload((), ())
        found = super().get(keys, groups)
        return [record and replace(record, groups=dict.fromkeys(record.groups, empty)) for record in found]


@KINDS
def test_a_state_that_does_not_fit_is_let_go_and_computed_anew(layout: StateLayout) -> None:
    store = ShrunkStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store)
    job = driver.run(PROMPT)
    assert job.output == plain_answer(options(layout), PROMPT)
    assert (job.computed, job.explanation.reason) == (len(PROMPT) - 1, StopReason.UNREADABLE)
    assert len(driver.events.of("FaultObserved")) == 1
    again = driver.run(PROMPT)
    assert (again.computed, again.output) == (0, job.output)
    driver.check_idle()


@KINDS
def test_a_restore_that_fails_for_lack_of_memory_costs_one_request_its_prefix(layout: StateLayout) -> None:
    store, faults = MemoryBlockStore(), ComputeFaults()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store)
    model = driver.model
    driver.model = faulty_model(model, faults)
    stored = store.usage().namespaces
    faults.arm("restore", ComputeFailed("out of memory"))
    job = driver.begin(PROMPT, 1)
    assert driver.step(job)
    assert (job.position, store.usage().namespaces) == (0, stored)
    driver.finish(job)
    assert job.output == plain_answer(options(layout), PROMPT, 1)
    assert (job.computed, job.explanation.reason) == (len(PROMPT) - 1, StopReason.RESTORE_FAILED)
    (fault,) = driver.events.of("FaultObserved")
    assert isinstance(fault, FaultObserved)
    assert (fault.where, fault.message) == ("cache.restore", "out of memory")
    again = driver.run(PROMPT, 1)
    assert (again.computed, again.output) == (0, job.output)
    assert dict(again.explanation.reused) == {"hot": len(PROMPT) - 1}
    driver.check_idle()


@KINDS
def test_a_live_state_that_cannot_be_taken_over_is_explained(layout: StateLayout) -> None:
    driver, faults = CacheDriver(options(layout), hot_bytes=0, live_bytes=1 << 30), ComputeFaults()
    driver.model = faulty_model(driver.model, faults)
    prompt = [*PROMPT, *driver.run(PROMPT).output, 7]
    faults.arm("take_over", ComputeFailed("out of memory"))
    job = driver.run(prompt)
    assert job.output == plain_answer(options(layout), prompt)
    assert (job.computed, job.explanation.reason) == (len(prompt) - 1, StopReason.RESTORE_FAILED)
    assert [fault.where for fault in driver.events.of("FaultObserved") if isinstance(fault, FaultObserved)] == [
        "cache.live"
    ]
    driver.check_idle()


@KINDS
def test_a_read_that_fails_costs_one_request_what_is_stored(layout: StateLayout) -> None:
    store = ScarceStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), hot_bytes=0, store=store)
    store.num_failures = 1
    failed = driver.begin(PROMPT)
    assert driver.step(failed)
    assert failed.position < len(PROMPT) - 1
    driver.fail(failed)
    again = driver.run(PROMPT)
    assert again.output == plain_answer(options(layout), PROMPT)
    assert dict(again.explanation.reused) == {"store": len(PROMPT) - 1}
    driver.check_idle()


class HolesStore(MemoryBlockStore):
    """Finds every record and reads none of `lost`; of the others it forgets the state of `forgotten` groups."""

    lost: type = SnapshotKey
    forgotten: frozenset[GroupIndex] = frozenset()

    def get(
        self, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex] | None] | None = None
    ) -> Sequence[Record | None]:
        return [
            replace(record, groups={at: state for at, state in record.groups.items() if at not in self.forgotten})
            if record is not None and not isinstance(record.key, self.lost)
            else None
            for record in super().get(keys, groups)
        ]


def test_a_snapshot_that_cannot_be_read_costs_the_way_back_to_the_block_before() -> None:
    store = HolesStore()
    CacheDriver(options(ATTENTION), store=store).run(PROMPT)
    job = CacheDriver(options(ATTENTION), store=store).run(PROMPT)
    assert job.computed == (len(PROMPT) - 1) % BLOCK
    assert job.output == plain_answer(options(ATTENTION), PROMPT)


@KINDS
def test_a_record_that_lacks_a_group_is_a_miss(layout: StateLayout) -> None:
    store = HolesStore()
    store.lost, store.forgotten = int, frozenset({layout.groups[0].index})
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store)
    job = driver.run(PROMPT)
    assert job.output == plain_answer(options(layout), PROMPT)
    assert job.computed == len(PROMPT) - 1
    assert not driver.events.of("FaultObserved")


class ForgetfulModel(FakeModel):
    """Has lost the windows of every block before position 64 when asked for them."""

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        trailing = {group.index for group in WINDOWED.groups if group.policy is HitPolicy.TRAILING}
        return [
            {at: state for at, state in groups.items() if start >= 64 or at not in trailing}
            for (start, _), groups in zip(spans, super().capture_blocks(id, spans), strict=True)
        ]


def test_nothing_is_kept_behind_a_block_that_could_not_be_captured_whole() -> None:
    driver = CacheDriver(options(WINDOWED), store=MemoryBlockStore())
    driver.model = ForgetfulModel(ModelSource(ModelId("toy"), "p"), options(WINDOWED))
    driver.run(PROMPT)
    assert driver.writer is not None
    assert driver.writer.outcomes == []
    assert driver.hot.usage().num_blocks == 0
    driver.check_idle()
