"""State that was read is uploaded to the device, whole or not at all, by readers or by the compute thread."""

from collections.abc import Sequence
from dataclasses import replace

from adapters.fake import ATTENTION
from adapters.fake.environment import FakeClock
from adapters.memory.block_store import MemoryBlockStore
from application.events import FaultObserved
from application.services.prefix.store_tier import RECORDS_PER_READ, StoreTier
from domain.ids import GroupIndex
from domain.models.state_layout import StateLayout
from domain.prefix.index import RecordNeed
from domain.prefix.record import HostPayload, Record, RecordKey, StatePayload
from tests.support.processes.lanes import HeldLane, InlineLane
from tests.support.stores.cache_driver import BLOCK, KINDS, CacheDriver, Job, options, plain_answer
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import chain, keys_of, namespace_of
from tests.support.telemetry.recording import RecordingEvents

NUM_READS = 5
PROMPT = list(range(100, 100 + NUM_READS * RECORDS_PER_READ * BLOCK))


class Uploaded(HostPayload):
    """State in a device's memory."""


class Device:
    def __init__(self, room: int = 1 << 20) -> None:
        self.room = room
        self.num_uploaded = 0

    def upload(self, payloads: Sequence[StatePayload]) -> Sequence[StatePayload]:
        if self.num_uploaded + len(payloads) > self.room:
            raise MemoryError("no room on the device")
        self.num_uploaded += len(payloads)
        return [Uploaded(payload.specs, payload.buffers()) for payload in payloads]


def restarted(layout: StateLayout, device: Device) -> tuple[CacheDriver, HeldLane]:
    """The store knows the whole prompt, and is read when the test says so."""
    store, lane = MemoryBlockStore(), HeldLane()
    CacheDriver(options(layout), store=store).run(PROMPT)
    driver = CacheDriver(options(layout), store=store, lane=lane, upload=device.upload)
    assert lane.run() == 1  # what it has is listed
    return driver, lane


def finish(driver: CacheDriver, job: Job, lane: HeldLane) -> None:
    """Step it until it is done; each step does something, or workers do, or another step was asked for."""
    while not job.is_done:
        num_wakes = driver.num_wakes
        assert driver.step(job) or lane.run() or driver.num_wakes > num_wakes


@KINDS
def test_an_uploaded_prefix_gives_the_answer_of_a_computed_one(layout: StateLayout) -> None:
    device = Device()
    driver, lane = restarted(layout, device)
    job = driver.begin(PROMPT)
    finish(driver, job, lane)
    assert job.output == plain_answer(options(layout), PROMPT)
    assert job.computed == 0
    assert device.num_uploaded
    driver.check_idle()


def test_reads_that_are_there_are_uploaded_one_a_step() -> None:
    device = Device()
    driver, lane = restarted(ATTENTION, device)
    job = driver.begin(PROMPT)
    lane.run()
    for number in range(1, NUM_READS):
        num_wakes = driver.num_wakes
        assert not driver.step(job)
        assert device.num_uploaded == number * RECORDS_PER_READ
        assert driver.num_wakes == num_wakes + 1, "there is more to upload"
    finish(driver, job, lane)
    assert job.explanation.reused["store"] == len(PROMPT) - 1


INFO = namespace_of("one")
BLOCKS = chain(INFO, 3)
FIRST, SECOND = GroupIndex(0), GroupIndex(1)
BOTH = frozenset({FIRST, SECOND})


def fetched(
    device: Device, events: RecordingEvents, keys: Sequence[RecordKey], groups: Sequence[frozenset[GroupIndex]] = ()
) -> Sequence[Record | None]:
    store = MemoryBlockStore(1 << 30)
    store.open_namespace(INFO)
    store.put(BLOCKS)
    tier = StoreTier(FakeClock(), events, SteppedWriter(store), upload=device.upload, readers=InlineLane())
    needs = [RecordNeed(key, wanted, 0) for key, wanted in zip(keys, groups or [BOTH] * len(keys), strict=True)]
    ((_, read),) = tier.begin_reads(needs, lambda: None, None)
    assert read is not None
    assert read.answer is not None
    return read.answer[0]


def test_every_payload_is_uploaded_and_nothing_else_changes() -> None:
    events = RecordingEvents()
    found = fetched(Device(), events, [*keys_of(BLOCKS[:2]), keys_of(chain(INFO, 4))[3]])
    assert found[2] is None
    for record, block in zip(found[:2], BLOCKS, strict=False):
        assert record is not None
        assert all(isinstance(payload, Uploaded) for payload in record.groups.values())
        assert {index: bytes(one.buffers()[0]) for index, one in record.groups.items()} == {
            index: bytes(one.buffers()[0]) for index, one in block.groups.items()
        }
        assert replace(record, groups={}) == replace(block, groups={})
    assert events.events == []


def test_only_the_groups_asked_for_are_uploaded() -> None:
    device = Device()
    (found,) = fetched(device, RecordingEvents(), keys_of(BLOCKS[:1]), [frozenset({SECOND})])
    assert found is not None
    assert set(found.groups) == {SECOND}
    assert device.num_uploaded == 1


def test_a_read_that_cannot_be_uploaded_is_given_as_it_is_and_that_is_counted() -> None:
    events = RecordingEvents()
    found = fetched(Device(room=3), events, keys_of(BLOCKS))
    uploaded = [
        [isinstance(one.groups[index], Uploaded) for index in (FIRST, SECOND)] for one in found if one is not None
    ]
    assert uploaded == [[False, False]] * 3
    faults = events.of(FaultObserved)
    assert [(fault.where, fault.message) for fault in faults] == [("prefix.land", "MemoryError: no room on the device")]
