"""What every tier of the prefix cache does: it keeps what is put, drops what it is asked to, and forgets namespaces."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from adapters.fake import FakeClock, FakeModel, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.indexes import Epoch, Indexes
from application.services.prefix.live_tier import LiveState, LiveTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import Tier
from domain.id_row import IdRow
from domain.ids import ModelId, SequenceId
from domain.models.model_card import ModelSource
from domain.prefix.fingerprint import EVERYTHING, NamespaceChoice
from domain.prefix.hashing import BlockChain
from domain.prefix.record import NamespaceInfo
from tests.support.processes.lanes import InlineLane
from tests.support.stores.stepped_writer import SteppedWriter
from tests.support.stores.store_records import chain, keys_of, namespace_of
from tests.support.telemetry.recording import RecordingEvents

ONE, TWO = namespace_of("one"), namespace_of("two")
NUM_KEPT = 3


@dataclass
class Bench:
    """A tier, what it can keep of two namespaces, and `settle`, which does what the tier does later."""

    tier: Tier[Any, Any]
    indexes: Indexes
    kept: dict[NamespaceInfo, Sequence[Any]]
    keys: dict[NamespaceInfo, Sequence[Any]]
    epochs: list[Epoch]
    settle: Callable[[], object] = lambda: None

    def found(self, info: NamespaceInfo) -> list[bool]:
        return [one is not None for one in self.tier.get(self.keys[info])]

    def clear(self, choice: NamespaceChoice = EVERYTHING) -> None:
        self.tier.clear(choice, self.indexes.end(choice.includes))
        self.settle()


def of_records(tier: HotTier | StoreTier, indexes: Indexes, settle: Callable[[], object]) -> Bench:
    kept = {info: chain(info, NUM_KEPT, size_bytes=8) for info in (ONE, TWO)}
    epochs = [indexes.epoch(info) for info in (ONE, TWO)]
    return Bench(tier, indexes, dict(kept), {info: keys_of(kept[info]) for info in kept}, epochs, settle)


def hot() -> Bench:
    tier, indexes = HotTier(1 << 20), Indexes()
    tier.indexes = indexes
    return of_records(tier, indexes, lambda: None)


def stored() -> Bench:
    writer, lane = SteppedWriter(MemoryBlockStore()), InlineLane()
    tier, indexes = StoreTier(FakeClock(), RecordingEvents(), writer, readers=lane, upkeep=lane), Indexes()
    tier.report_to(indexes)
    return of_records(tier, indexes, writer.pump)


def live() -> Bench:
    model = FakeModel(ModelSource(ModelId("toy"), "p"), FakeOptions())
    tier, indexes = LiveTier(1 << 20), Indexes()
    epochs = {info: indexes.epoch(info) for info in (ONE, TWO)}
    kept: dict[NamespaceInfo, list[LiveState]] = {info: [] for info in epochs}
    for number in range(2 * NUM_KEPT):
        id, info = SequenceId(number), (ONE, TWO)[number % 2]
        model.open(id)
        model.prefill(id, IdRow(range(number, number + 40)))
        left = model.leave(id, may_copy=True)
        assert left is not None
        tokens = BlockChain(info.namespace, 16, IdRow(range(number, number + 40)))
        kept[info].append(LiveState(id, model, tokens, epochs[info], info.model, left, 1, 0))
    keys = {info: [state.id for state in states] for info, states in kept.items()}
    return Bench(tier, indexes, dict(kept), dict(keys), list(epochs.values()), tier.sweep)


@pytest.fixture(params=[live, hot, stored], ids=["live", "hot", "store"])
def bench(request: pytest.FixtureRequest) -> Bench:
    made: Bench = request.param()
    assert made.tier.name == request.node.callspec.id
    return made


def test_what_is_put_is_there_and_nothing_else(bench: Bench) -> None:
    assert bench.found(ONE) == [False] * NUM_KEPT
    assert bench.tier.put(bench.kept[ONE]) == NUM_KEPT
    for _ in range(2):  # at once, and when it is where it belongs
        assert bench.found(ONE) == [True] * NUM_KEPT
        assert bench.found(TWO) == [False] * NUM_KEPT
        bench.settle()


def test_what_is_dropped_is_gone_and_what_is_absent_is_ignored(bench: Bench) -> None:
    for info in (ONE, TWO):
        bench.tier.put(bench.kept[info])
    bench.settle()
    for _ in range(2):
        bench.tier.drop(bench.keys[ONE][-1:])
        bench.settle()
        assert bench.found(ONE) == [*([True] * (NUM_KEPT - 1)), False]
    assert bench.found(TWO) == [True] * NUM_KEPT


def test_a_cleared_namespace_is_gone_and_others_stay(bench: Bench) -> None:
    for info in (ONE, TWO):
        bench.tier.put(bench.kept[info])
    bench.settle()
    bench.clear(NamespaceChoice(ONE.model))
    assert (bench.found(ONE), bench.found(TWO)) == ([False] * NUM_KEPT, [True] * NUM_KEPT)
    bench.clear()
    assert bench.found(TWO) == [False] * NUM_KEPT


def test_what_was_put_just_before_is_cleared_too(bench: Bench) -> None:
    bench.tier.put(bench.kept[ONE])
    bench.clear()
    assert bench.found(ONE) == [False] * NUM_KEPT
