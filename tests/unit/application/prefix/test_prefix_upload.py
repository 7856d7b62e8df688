"""Where only the compute thread can upload state: it does so read by read, while workers read on."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from adapters.fake import ATTENTION, HYBRID, LAYOUTS, WINDOWED, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.services.prefix.fetch import RECORDS_PER_READ
from domain.models.state_layout import StateLayout
from domain.prefix.record import HostPayload, StatePayload
from tests.support.processes.lanes import HeldLane
from tests.support.stores.cache_driver import BLOCK, VOCAB, CacheDriver, Job, plain_answer

OPTIONS = FakeOptions(vocab_size=VOCAB, alphabet=range(VOCAB), eos_every=0)
NUM_READS = 5
PROMPT = list(range(100, 100 + NUM_READS * RECORDS_PER_READ * BLOCK))
KINDS = pytest.mark.parametrize("layout", [ATTENTION, WINDOWED, HYBRID, LAYOUTS["everything"]], ids=lambda _: "")


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


def options(layout: StateLayout) -> FakeOptions:
    return replace(OPTIONS, layout=layout)


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
def test_a_landed_prefix_gives_the_answer_of_a_computed_one(layout: StateLayout) -> None:
    device = Device()
    driver, lane = restarted(layout, device)
    job = driver.begin(PROMPT)
    finish(driver, job, lane)
    assert job.output == plain_answer(options(layout), PROMPT)
    assert job.computed == 0
    assert device.num_uploaded
    driver.check_idle()


def test_reads_that_are_there_are_landed_one_a_step() -> None:
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
