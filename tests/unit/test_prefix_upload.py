"""Where only the compute thread can land state: it does so read by read while workers read on, and in bounded steps."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.events import FaultObserved
from application.services.prefix.fetch import READS_AHEAD, RECORDS_PER_READ
from domain.payload import HostPayload, StatePayload
from domain.state_layout import StateLayout
from tests.support.cache_driver import BLOCK, VOCAB, CacheDriver, Job, plain_answer
from tests.support.lanes import HeldLane
from tests.support.store_records import empty

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
NUM_READS = 10
PROMPT = list(range(100, 100 + NUM_READS * RECORDS_PER_READ * BLOCK))
KINDS = pytest.mark.parametrize("layout", [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]], ids=lambda _: "")


class Landed(HostPayload):
    """State in a device's memory."""


class Device:
    """`calls`: how many payloads each upload brought."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.room = room
        self.calls: list[int] = []

    def upload(self, payloads: Sequence[StatePayload]) -> Sequence[StatePayload]:
        self.calls.append(len(payloads))
        self.room -= len(payloads)
        if self.room < 0:
            raise MemoryError("no room on the device")
        return [Landed(one.specs, one.buffers()) for one in payloads]


def options(layout: StateLayout) -> FakeOptions:
    return replace(OPTIONS, layout=layout)


def restarted(layout: StateLayout, device: Device, lane: HeldLane | None = None) -> CacheDriver:
    """The store knows the whole prompt. With a lane, it is read when the test says so."""
    store = MemoryBlockStore()
    CacheDriver(options(layout), store=store).run(PROMPT)
    return CacheDriver(options(layout), store=store, lane=lane, upload=device.upload)


def finish(driver: CacheDriver, job: Job, lane: HeldLane | None = None) -> None:
    """Step it until it is done; each step does something, or workers do, or another step was asked for."""
    while not job.is_done:
        num_wakes = driver.num_wakes
        assert driver.step(job) or (lane is not None and lane.run()) or driver.num_wakes > num_wakes


@KINDS
def test_an_uploaded_prefix_gives_the_answer_of_a_computed_one(layout: StateLayout) -> None:
    device = Device()
    driver = restarted(layout, device)
    job = driver.begin(PROMPT)
    finish(driver, job)
    assert job.output == plain_answer(options(layout), PROMPT)
    assert job.computed == 0
    assert len(device.calls) >= NUM_READS
    driver.check_idle()


def test_the_first_read_lands_before_the_last_is_begun_and_host_memory_holds_a_few() -> None:
    device, lane = Device(), HeldLane()
    driver = restarted(ATTENTION, device, lane)
    job = driver.begin(PROMPT)
    for number in range(NUM_READS):
        assert lane.num_pending <= READS_AHEAD
        assert len(device.calls) == number
        assert lane.run(1)
        assert not driver.step(job) or number == NUM_READS - 1
    assert device.calls == [RECORDS_PER_READ] * NUM_READS
    finish(driver, job, lane)
    assert job.explanation.reused == {"store": len(PROMPT) - 1}


def test_a_step_lands_one_read_and_asks_for_another_step() -> None:
    device, lane = Device(), HeldLane()
    driver = restarted(ATTENTION, device, lane)
    job = driver.begin(PROMPT)
    assert lane.run(READS_AHEAD) == READS_AHEAD
    for number in range(READS_AHEAD - 1):
        num_wakes = driver.num_wakes
        assert not driver.step(job)
        assert len(device.calls) == number + 1
        assert driver.num_wakes > num_wakes


@KINDS
def test_what_cannot_be_uploaded_is_restored_as_it_was_read(layout: StateLayout) -> None:
    driver = restarted(layout, Device(room=3 * RECORDS_PER_READ))
    job = driver.begin(PROMPT)
    finish(driver, job)
    assert job.output == plain_answer(options(layout), PROMPT)
    assert job.computed == 0
    faults = [event for event in driver.events.of("FaultObserved") if isinstance(event, FaultObserved)]
    assert {(fault.where, fault.message) for fault in faults} == {("prefix.land", "MemoryError: no room on the device")}
    driver.check_idle()


@KINDS
def test_a_record_that_went_meanwhile_is_computed(layout: StateLayout) -> None:
    device, lane = Device(), HeldLane()
    driver = restarted(layout, device, lane)
    job = driver.begin(PROMPT)
    lane.run(2)
    assert not driver.step(job)
    assert driver.store is not None
    assert empty(driver.store, driver.store.usage().namespaces[0].info)
    finish(driver, job, lane)
    assert job.output == plain_answer(options(layout), PROMPT)
    lane.run()
    driver.check_idle()


def test_who_leaves_drops_what_is_still_to_be_read() -> None:
    device, lane = Device(), HeldLane()
    driver = restarted(ATTENTION, device, lane)
    job = driver.begin(PROMPT)
    lane.run(1)
    assert not driver.step(job)
    driver.fail(job)
    lane.run()
    assert device.calls == [RECORDS_PER_READ]
    assert lane.num_pending == 0
    driver.check_idle()


def test_what_was_landed_before_the_cache_was_cleared_does_not_come_back() -> None:
    device, lane = Device(), HeldLane()
    driver = restarted(ATTENTION, device, lane)
    job = driver.begin(PROMPT)
    lane.run(1)
    assert not driver.step(job)
    driver.cache.clear(None, None)
    finish(driver, job, lane)
    assert job.output == plain_answer(OPTIONS, PROMPT)
    assert job.computed == len(PROMPT) - 1
    assert device.calls == [RECORDS_PER_READ]


def test_what_was_uploaded_is_in_memory_for_the_next_one() -> None:
    device = Device()
    driver = restarted(ATTENTION, device)
    finish(driver, driver.begin(PROMPT))
    num_uploads = len(device.calls)
    job = driver.run(PROMPT)
    assert job.explanation.reused == {"hot": len(PROMPT) - 1}
    assert len(device.calls) == num_uploads
