"""A device that fails under any pass of any stream: everybody is resumed with the same tokens, and no garbage is kept.

The next computation or capture raises the failure, mostly not by the request whose pass failed.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest

from adapters.engine_process import host
from adapters.engine_process.engine import EngineProcess
from adapters.engine_process.host import Hosted
from adapters.fake.engine import FakeEngine
from adapters.fake.model import FakeModel
from adapters.memory.block_store import MemoryBlockStore
from adapters.system.clock import SystemClock
from application.events import EngineRestarted, FaultObserved
from application.ports.engine import MakeInstance
from application.services.text_side.supervision.open_work import MAX_SUSPICIONS
from domain.prefix.record import RecordKey
from tests.support.effort import drawn
from tests.support.engines.engine_client import (
    DRAFTING,
    OPTIONS,
    EngineClient,
    check_model,
    engine_on_a_thread,
    source,
)
from tests.support.engines.failing_device import PASSES, WORDS, FailingDevice
from tests.support.engines.process.all_streams import (
    NUM_CHOICES,
    STREAMS,
    check_same,
    check_told,
    end_of,
    play,
    tokens,
)
from tests.support.engines.toy_prompts import prompt_of
from tests.support.processes.hosted_child import HostedChild
from tests.support.stores.forwarding_store import ForwardingStore

DRAFTED = source(DRAFTING)
CHUNKS = frozenset({"prefill", "start_decode"})


class Kept(ForwardingStore):
    """The store of one engine after the other."""

    def close(self) -> None:
        """Stays open."""


@pytest.fixture(autouse=True)
def heard_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat reports the loss."""
    monkeypatch.setattr(host, "HEARTBEAT_S", 0.005)


def engines(device: FailingDevice, store: MemoryBlockStore) -> MakeInstance:
    def hosted(_settings: bytes, hold: Any) -> Hosted:
        engine = engine_on_a_thread(
            hold, delivers_directly=True, backend=lambda: device.engine(FakeEngine(OPTIONS)), store=Kept(store)
        )
        return Hosted(engine, check_model)

    return lambda lost: EngineProcess(HostedChild(hosted), b"", SystemClock(), lost=lost)


def contents(store: MemoryBlockStore) -> dict[RecordKey, list[bytes]]:
    keys = [key for usage in store.usage().namespaces for key in store.keys(usage.info.namespace)]
    found: dict[RecordKey, list[bytes]] = {}
    for key, record in zip(keys, store.get(keys), strict=True):
        assert record is not None
        found[key] = [bytes(buffer) for at in sorted(record.groups) for buffer in record.groups[at].buffers()]
    return found


class Calm(NamedTuple):
    """What comes of an undisturbed engine: answers, stored records and numbers of passes."""

    client: EngineClient
    stored: dict[RecordKey, list[bytes]]
    num_passes: Mapping[str, int]


def undisturbed() -> Calm:
    store, device = MemoryBlockStore(), FailingDevice(Random(0))
    return Calm(play(engines(device, store), model=DRAFTED), contents(store), device.num_passes)


@pytest.fixture(scope="module")
def calm() -> Calm:
    return undisturbed()


def check_store(store: MemoryBlockStore, device: FailingDevice, calm: dict[RecordKey, list[bytes]]) -> None:
    """It holds nothing that was captured of garbage, and what an undisturbed engine stores is the same there."""
    assert store.check_integrity().problems == ()
    for key, buffers in contents(store).items():
        assert device.garbage.isdisjoint(buffers), f"{key} is garbage"
        assert buffers == calm.get(key, buffers), f"{key} differs"


def run_seed(seed: int, calm: Calm) -> FailingDevice:
    """Every other time a prompt's chunk fails, of which something is captured at once."""
    draw, store, kinds = Random(seed), MemoryBlockStore(), CHUNKS if seed % 2 else PASSES
    device = FailingDevice(draw, draw.randrange(sum(calm.num_passes[kind] for kind in kinds)), kinds)
    disturbed = play(engines(device, store), model=DRAFTED)
    check_same(disturbed, calm.client)
    check_store(store, device, calm.stored)
    restarts = [event.why for event in disturbed.events if isinstance(event, EngineRestarted)]
    faults = [event for event in disturbed.events if isinstance(event, FaultObserved)]
    was_met_last = not device.num_after  # all had ended, and no request waited for another engine
    assert restarts == [f"the engine stopped: the device failed: {WORDS}"] * device.num_told or was_met_last
    assert sum(event.where == "engine.device" for event in faults) == device.num_told or was_met_last
    again = play(engines(FailingDevice(draw), store), model=DRAFTED)
    check_same(again, calm.client)
    return device


def test_a_pass_that_fails_is_a_pause_for_everybody(calm: Calm) -> None:
    devices = [run_seed(seed, calm) for seed in range(drawn(14))]
    assert sum(device.num_told for device in devices) > len(devices) / 2
    assert any(device.garbage for device in devices), "nothing was captured of garbage"


POISON = prompt_of(STREAMS["drawn"]["text"]).token_ids


def is_poison(model: FakeModel, operation: str, given: Sequence[Any]) -> bool:
    """The end of one prompt kills the device, whenever it is computed."""
    return operation == "start_decode" and given[2].prompt_ids == POISON


def test_a_request_that_always_kills_the_device_ends_and_nobody_else(
    calm: Calm,
) -> None:
    store, device = MemoryBlockStore(), FailingDevice(Random(1), victim=is_poison)
    disturbed = play(engines(device, store), model=DRAFTED)
    check_told(disturbed)
    error = end_of(disturbed, "drawn", 0).error
    assert error is not None
    assert error.code == "engine_lost"
    assert WORDS in error.message
    assert 2 <= device.num_told <= MAX_SUSPICIONS
    for id, number in NUM_CHOICES.items():
        for choice in range(number):
            if id != "drawn":
                assert end_of(disturbed, id, choice).error is None, id
                assert tokens(disturbed, id, choice) == tokens(calm.client, id, choice)
    check_store(store, device, calm.stored)
