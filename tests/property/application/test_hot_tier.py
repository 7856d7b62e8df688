"""The hot tier as a state machine: sound after every step, within its budget, leaves first, pins respected."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from application.services.prefix.hot_tier import RECORD_OVERHEAD_BYTES, HotTier, record_bytes
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.hashing import block_hash, snapshot_key
from domain.prefix.record import BlockKey, HostPayload, Namespace, Record, RecordKey, TensorSpec
from tests.support.effort import drawn

ROOTS = [Namespace(bytes([at]) * 32) for at in (1, 2)]
NO_GROUPS: frozenset[GroupIndex] = frozenset()


def payload(num_bytes: int) -> HostPayload:
    return HostPayload((TensorSpec("uint8", (num_bytes,)),), (memoryview(bytes(num_bytes)),))


class HotTierMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = 8 * (RECORD_OVERHEAD_BYTES + 300)
        self.tier = HotTier(self.budget)
        self.records: list[Record] = []
        self.pins: list[RecordKey] = []

    @rule(data=st.data(), token=st.integers(0, 3), size=st.integers(0, 600), group=st.integers(0, 1))
    def put_block(self, data: st.DataObject, token: int, size: int, group: int) -> None:
        namespace, parent, position = self._place(data)
        key = BlockKey(namespace, block_hash(parent, [token]))
        groups = {GroupIndex(group): payload(size)}
        self._put(Record(key, parent, position + 1, IdRow((token,)), groups))

    @rule(data=st.data(), num_partial=st.integers(0, 2), size=st.integers(0, 600))
    def put_snapshot(self, data: st.DataObject, num_partial: int, size: int) -> None:
        namespace, parent, position = self._place(data)
        tokens = (7,) * num_partial
        key = snapshot_key(namespace, parent, tokens)
        self._put(Record(key, parent, position + num_partial, IdRow(tokens), {GroupIndex(0): payload(size)}))

    def _place(self, data: st.DataObject) -> tuple[Namespace, BlockHash, int]:
        blocks = [record for record in self.records if isinstance(record.key, BlockKey)]
        if blocks and data.draw(st.booleans()):
            above = data.draw(st.sampled_from(blocks))
            assert isinstance(above.key, BlockKey)
            return above.key.namespace, above.key.hash, above.position
        root = data.draw(st.sampled_from(ROOTS))
        return root, BlockHash(root), 0

    def _put(self, record: Record) -> None:
        is_root = record.parent == BlockHash(record.key.namespace)
        has_parent = is_root or self.held(BlockKey(record.key.namespace, record.parent))
        was_here = self.held(record.key)
        taken = self.tier.put([record])
        assert taken == self.held(record.key)
        if not has_parent and not was_here:
            assert not taken
        elif not self.pins and self._lineage_bytes(record) <= self.budget:
            assert taken
        self.records.append(record)

    def _lineage_bytes(self, record: Record) -> int:
        """What cannot go to make room for it: itself and all it hangs on, with whatever groups they were ever given."""
        hangs_on = [one for one in self.records if one.key == BlockKey(record.key.namespace, record.parent)]
        given = [one for one in self.records if one.key == record.key]
        above = self._lineage_bytes(hangs_on[0]) if hangs_on else 0
        return above + sum(record_bytes(one) for one in (record, *given))

    def held(self, key: RecordKey) -> bool:
        return self.tier.get([key])[0] is not None

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def acquire(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.records)).key
        record = self.tier.acquire([key], [NO_GROUPS])[0]
        assert (record is not None) == self.held(key)
        if record is not None:
            assert record.key == key
            self.pins.append(key)

    @rule()
    def acquire_groups_that_are_not_there(self) -> None:
        keys = [record.key for record in self.records]
        assert self.tier.acquire(keys, [frozenset({GroupIndex(9)})] * len(keys)) == [None] * len(keys)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.tier.release([self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))])

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.records)).key
        was_here = self.held(key)
        self.tier.drop([key])
        assert not (was_here and key in self.pins) or self.held(key)

    @rule(num_records=st.integers(0, 12))
    def resize(self, num_records: int) -> None:
        self.budget = num_records * (RECORD_OVERHEAD_BYTES + 300)
        self.tier.resize(self.budget)

    @invariant()
    def it_is_sound(self) -> None:
        assert self.tier.check_integrity() == []
        usage = self.tier.usage()
        assert usage.used_bytes <= self.budget or usage.num_pinned
        assert usage.num_pinned == len(set(self.pins))
        assert all(self.held(key) for key in self.pins)


HotTierMachine.TestCase.settings = settings(max_examples=drawn(60), stateful_step_count=40, deadline=None)
TestHotTier = HotTierMachine.TestCase


def test_the_least_recently_used_leaf_goes_first_and_never_a_parent() -> None:
    tier = HotTier(3 * (RECORD_OVERHEAD_BYTES + 4))
    root = ROOTS[0]
    first = Record(BlockKey(root, block_hash(BlockHash(root), [1])), BlockHash(root), 1, IdRow((1,)), {})
    second = Record(BlockKey(root, block_hash(first.key.hash, [2])), first.key.hash, 2, IdRow((2,)), {})
    others = [
        Record(BlockKey(root, block_hash(BlockHash(root), [at])), BlockHash(root), 1, IdRow((at,)), {})
        for at in (7, 8, 9)
    ]
    assert tier.put([first, second, others[0]]) == 3
    tier.release([record.key for record in tier.acquire([first.key, second.key], [None, None]) if record])
    tier.put([others[1]])
    assert tier.get([first.key, second.key, others[0].key]) == [first, second, None]
    tier.put(others[2:])
    assert [held is not None for held in tier.get([first.key, second.key, others[1].key])] == [True, False, True]
    assert tier.usage().evicted == 2


def test_a_record_read_in_part_gains_its_other_groups() -> None:
    tier = HotTier(1 << 20)
    key = BlockKey(ROOTS[0], block_hash(BlockHash(ROOTS[0]), [1]))
    part = Record(key, BlockHash(ROOTS[0]), 1, IdRow((1,)), {GroupIndex(0): payload(100)})
    rest = Record(key, BlockHash(ROOTS[0]), 1, IdRow((1,)), {GroupIndex(1): payload(50)})
    tier.put([part])
    used = tier.usage().used_bytes
    tier.put([rest])
    assert tier.usage().used_bytes == used + 50
    assert [set(held.groups) for held in tier.get([key]) if held] == [{GroupIndex(0), GroupIndex(1)}]
    assert tier.check_integrity() == []
