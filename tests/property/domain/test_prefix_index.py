"""The prefix index against a plain account of what is where, and what changes while the store's rows are read."""

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from adapters.fake import ATTENTION, HYBRID
from application.services.prefix.indexes import KEYS_AT_ONCE, Indexes
from domain.id_row import IdRow
from domain.ids import BlockHash
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain, snapshot_key
from domain.prefix.index import ANYWHERE, HOT, PERSISTED, QUEUED, STORED, PrefixIndex, ReuseRules
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, RecordKey

ROOT, BLOCK = Namespace(b"r" * 32), 4
INFO = NamespaceInfo(ROOT, "toy", "{}")
CHAIN = BlockChain(ROOT, BLOCK, IdRow(range(22)))
RULES = ReuseRules.of(ATTENTION, BlockGrid(BLOCK, 8))
RECORDS: tuple[RecordKey, ...] = (*CHAIN.prompt_keys(), *(CHAIN.snapshot_key(at) for at in (3, 9, 10, 17, 21)))
places = st.sampled_from((HOT, QUEUED, STORED, PERSISTED, ANYWHERE))
changes = st.lists(st.tuples(st.booleans(), st.sampled_from(RECORDS), places), max_size=60)


@given(changes)
def test_a_record_is_where_it_was_added_and_not_removed(changes: list[tuple[bool, RecordKey, int]]) -> None:
    index, account = PrefixIndex(INFO), dict[RecordKey, int]()
    for is_added, key, place in changes:
        (index.add if is_added else index.remove)((key,), place)
        account[key] = account.get(key, 0) | place if is_added else account.get(key, 0) & ~place
    assert all(index.places(key) == account.get(key, 0) for key in RECORDS)
    for place in (HOT, STORED, ANYWHERE):
        assert set(index.keys(place)) == {key for key, where in account.items() if where & place}
    assert index.num_in_memory == sum(where & (HOT | QUEUED) > 0 for where in account.values())
    index.remove_all(STORED)
    assert not index.keys(STORED)


@given(st.sets(st.integers(1, 21)), st.integers(0, 200))
def test_a_prompt_finds_its_own_snapshots_among_those_of_others(positions: set[int], num_others: int) -> None:
    index = PrefixIndex(INFO)
    index.add(CHAIN.prompt_keys(), STORED)
    index.add([CHAIN.snapshot_key(at) for at in positions], STORED)
    index.add([snapshot_key(ROOT, CHAIN.parent(2), (900 + at, *range(at % 3))) for at in range(num_others)], HOT)
    match = index.match(CHAIN, ReuseRules.of(HYBRID, BlockGrid(BLOCK, 8)))
    assert match.snapshots == {at: CHAIN.snapshot_key(at) for at in positions}
    assert match.position == max(positions, default=0)
    assert not index.match(CHAIN, RULES, place=QUEUED).position


def test_the_reason_why_a_match_ends_follows_from_what_was_here() -> None:
    index = PrefixIndex(INFO)
    keys = CHAIN.prompt_keys()
    index.add(keys, HOT)
    assert (index.match(CHAIN, RULES).position, index.match(CHAIN, RULES, keys[3:4]).position) == (20, 12)
    index.remove(keys[2:3], HOT)
    assert index.match(CHAIN, RULES).reason is StopReason.EVICTED
    index.is_known = False
    assert index.match(CHAIN, RULES).reason is StopReason.SLOW_STORE
    assert PrefixIndex(INFO).match(CHAIN, RULES).reason is StopReason.NEVER_SEEN


def loaded(meanwhile: Callable[[Indexes], object], keys: Sequence[RecordKey] = RECORDS) -> tuple[Indexes, bool]:
    """Something happens after the rows were read and before they are indexed."""

    def read(namespace: Namespace) -> Sequence[RecordKey]:
        assert namespace == ROOT
        meanwhile(indexes)
        return keys

    indexes = Indexes(read)
    epoch = indexes.epoch(INFO)
    indexes.load(epoch)
    return indexes, epoch.is_known


def test_what_leaves_the_store_while_its_rows_are_read_is_not_indexed() -> None:
    indexes, is_known = loaded(lambda indexes: indexes.note_gone(RECORDS[2:4]))
    assert is_known
    assert indexes.places(RECORDS) == [STORED] * 2 + [0] * 2 + [STORED] * (len(RECORDS) - 4)


def test_what_is_stored_while_rows_are_read_is_indexed() -> None:
    indexes, is_known = loaded(lambda indexes: indexes.add(RECORDS[:1], STORED), RECORDS[1:])
    assert is_known
    assert indexes.places(RECORDS) == [STORED] * len(RECORDS)


def test_rows_of_a_store_that_was_opened_anew_meanwhile_are_read_again() -> None:
    indexes, is_known = loaded(lambda indexes: indexes.note_gone(None))
    assert not is_known
    assert indexes.places(RECORDS) == [0] * len(RECORDS)


def test_many_rows_are_indexed_in_pieces() -> None:
    keys = [BlockKey(ROOT, BlockHash(number.to_bytes(32, "big"))) for number in range(1, 3 * KEYS_AT_ONCE)]
    indexes, is_known = loaded(lambda _: None, keys)
    assert is_known
    assert indexes.places(keys) == [STORED] * len(keys)


def test_a_cleared_namespace_begins_anew_and_what_it_had_stays_gone() -> None:
    indexes = Indexes()
    before = indexes.epoch(INFO)
    indexes.add(RECORDS, HOT)
    assert indexes.end(lambda info: info == INFO) == [ROOT]
    indexes.add(RECORDS[:1], HOT)
    after = indexes.epoch(INFO)
    with indexes.lasting(before) as may_keep, indexes.lasting(after) as may_keep_now:
        assert (may_keep, may_keep_now) == (False, True)
    assert not indexes.match(after, CHAIN, RULES).position
