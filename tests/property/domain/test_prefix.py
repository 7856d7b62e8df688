"""Prompts and lookups against oracles: rows of ids are tuples, equal chains stand for equal prefixes, and a match is
the longest that trying every position finds."""

import pickle
import sys
import tracemalloc
from array import array
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.engine_process.messages import Submit, ToChild, decoded, encoded
from adapters.fake import ATTENTION, COMPOSITE_PAIRS, EVERYTHING, HYBRID, RECURRENT_ONLY, WINDOWED, windowed
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.ids import BlockHash, ModelId
from domain.models.state_layout import HitPolicy, StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.fingerprint import Fingerprint
from domain.prefix.hashing import BlockChain, snapshot_key
from domain.prefix.index import PrefixMatch, ReuseRules, find_prefix
from domain.prefix.prompt_content import BlockGrid, EncodedPrompt
from domain.prefix.record import Namespace
from tests.support.engines.sync_engine import submission

ROOT = Namespace(b"r" * 32)
BLOCK = 4
WINDOW_ONLY = StateLayout((windowed(6),))
layouts = st.sampled_from([ATTENTION, WINDOWED, WINDOW_ONLY, RECURRENT_ONLY, HYBRID, COMPOSITE_PAIRS, EVERYTHING])


@dataclass
class Case:
    prompt: list[int]
    present: list[bool]
    snapshots: set[int]
    rules: ReuseRules


@st.composite
def cases(draw: st.DrawFn) -> Case:
    prompt = draw(st.lists(st.integers(0, 5), min_size=1, max_size=41))
    num_blocks = len(prompt) // BLOCK
    present = draw(st.lists(st.booleans() | st.just(True), min_size=num_blocks, max_size=num_blocks))
    snapshots = draw(st.sets(st.integers(1, len(prompt))))
    rules = ReuseRules.of(draw(layouts), BlockGrid(BLOCK, 8, draw(st.booleans())))
    return Case(prompt, present, snapshots, rules)


def oracle(case: Case) -> int:
    """The furthest position at which each group finds every token it needs, or a snapshot that has them."""
    for position in range(len(case.prompt) - 1, 0, -1):
        if case.rules.grid.is_exact and position % case.rules.grid.step:
            continue
        has_snapshot = position in case.snapshots
        whole = position // BLOCK * BLOCK
        held = {at for at in range(whole) if case.present[at // BLOCK]}
        held |= set(range(whole, position)) if has_snapshot else set()
        needed: set[int] = set()
        for group in case.rules.groups:
            if group.policy is HitPolicy.SNAPSHOT and not has_snapshot:
                needed.add(-1)
            elif group.policy is HitPolicy.ALL:
                needed |= set(range(position))
            elif group.policy is HitPolicy.TRAILING:
                assert group.window
                needed |= set(range(max(0, position - group.window), position))
        partial_is_held = position == whole or has_snapshot
        if needed <= held and partial_is_held:
            return position
    return 0


def look_up(case: Case) -> tuple[PrefixMatch, BlockChain]:
    chain = BlockChain(ROOT, BLOCK, IdRow(case.prompt))
    found = {}
    for position in case.snapshots:
        if position < len(case.prompt):
            whole = position // BLOCK
            found[position] = snapshot_key(ROOT, chain.parent(whole), case.prompt[whole * BLOCK : position])
    return find_prefix(chain, case.present, found, case.rules), chain


@given(cases())
def test_it_finds_the_furthest_restorable_position(case: Case) -> None:
    assert look_up(case)[0].position == oracle(case)


@given(cases(), st.integers(0, 40))
def test_the_groups_of_all_blocks_at_once_are_those_of_each(case: Case, position: int) -> None:
    num_blocks = position // BLOCK
    each = [case.rules.needed_groups(position, index) for index in range(num_blocks)]
    assert case.rules.all_needed_groups(position, num_blocks) == each


@given(cases())
def test_what_it_asks_for_is_present_and_enough(case: Case) -> None:
    match, chain = look_up(case)
    assert match.position < len(case.prompt)
    blocks = match.needs[: match.position // BLOCK]
    assert [need.key for need in blocks] == list(chain.prompt_keys()[: len(blocks)])
    for index, need in enumerate(blocks):
        assert case.present[index] or not need.groups
        for group in case.rules.groups:
            in_reach = (index + 1) * BLOCK > match.position - (group.window or 0)
            wanted = group.policy is HitPolicy.ALL or (group.policy is HitPolicy.TRAILING and in_reach)
            assert (group.index in need.groups) == wanted
    inside_block = match.position % BLOCK != 0
    assert sum(need.num_tokens for need in match.needs) == match.position
    has_snapshot = bool(match.position and (case.rules.needs_snapshots or inside_block))
    assert [need.key for need in match.needs[len(blocks) :]] == [
        match.snapshots[position] for position in [match.position] if has_snapshot
    ]


@given(cases())
def test_the_reason_fits_what_is_there(case: Case) -> None:
    match, _ = look_up(case)
    if 0 < match.position == len(case.prompt) - 1:
        assert match.reason is StopReason.LAST_TOKEN
    elif match.reason is StopReason.NO_SNAPSHOT:
        assert case.rules.needs_snapshots
        assert match.num_known > match.position
    elif match.reason is StopReason.OFF_GRID:
        assert case.rules.grid.is_exact
    elif match.reason is StopReason.PARTIAL_BLOCK:
        assert match.num_known >= len(case.prompt) - 1 or case.rules.grid.is_exact
    else:
        assert match.reason is StopReason.NEVER_SEEN
        assert match.num_known <= match.position or match.position == 0


def test_an_absent_block_that_was_here_before_is_reported_as_evicted() -> None:
    chain = BlockChain(ROOT, BLOCK, IdRow(range(20)))
    rules = ReuseRules.of(ATTENTION, BlockGrid(BLOCK, 8))
    present = [True, True, False, True, True]
    assert find_prefix(chain, present, {}, rules).reason is StopReason.NEVER_SEEN
    match = find_prefix(chain, present, {}, rules, is_evicted=True)
    assert (match.position, match.reason) == (8, StopReason.EVICTED)


NUM_TOKENS = 20_000

ids = st.lists(st.integers(0, MAX_TOKEN_ID), max_size=40)
bounds = st.one_of(st.none(), st.integers(-50, 50))


@given(ids, bounds, bounds, st.sampled_from((None, 1, 2, -1)))
def test_it_is_read_as_a_tuple_is(numbers: list[int], start: int | None, end: int | None, step: int | None) -> None:
    row, plain = IdRow(numbers), tuple(numbers)
    assert (len(row), tuple(row), bool(row)) == (len(plain), plain, bool(plain))
    assert tuple(row[start:end:step]) == plain[start:end:step]
    assert tuple(reversed(row)) == plain[::-1]
    assert [row[at] for at in range(-len(row), len(row))] == [*plain, *plain]
    assert all(number in row for number in plain)
    assert tuple(row.followed_by(plain)) == plain + plain
    assert tuple(IdRow.joined((row, IdRow((7,)), row))) == (*plain, 7, *plain)


@given(ids, ids)
def test_it_is_equal_to_what_has_the_same_ids(left: list[int], right: list[int]) -> None:
    row, is_same = IdRow(left), left == right
    assert (row == IdRow(right)) == (row == right) == (row == tuple(right)) == (tuple(right) == row) == is_same
    assert row == left
    assert hash(row) == hash(tuple(left))
    assert row != "no ids"


@given(ids)
def test_it_crosses_as_its_bytes(numbers: list[int]) -> None:
    row = IdRow(numbers)
    packed = b"".join(number.to_bytes(4, "little") for number in numbers)
    assert row.to_bytes() == packed
    assert IdRow.of_bytes(packed) == IdRow.of_bytes(memoryview(packed)) == row
    assert decoded(encoded(row), IdRow) == row
    assert pickle.loads(pickle.dumps(row)) == row


def test_an_index_outside_is_refused() -> None:
    for at in (3, -4):
        with pytest.raises(IndexError):
            IdRow((1, 2, 3))[at]


@pytest.mark.parametrize("numbers", [(-1,), (1, MAX_TOKEN_ID + 1), (1 << 70,)])
def test_what_is_no_id_is_refused(numbers: tuple[int, ...]) -> None:
    for given_as in (numbers, list(numbers), iter(numbers)):
        with pytest.raises(ValueError, match=f"in 0..{MAX_TOKEN_ID}"):
            IdRow(given_as)
    with pytest.raises(ValueError, match=f"in 0..{MAX_TOKEN_ID}"):
        IdRow((1,)).followed_by(numbers)


def test_bytes_that_are_no_whole_number_of_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        IdRow.of_bytes(b"12345")


def test_nothing_that_it_was_made_from_changes_it() -> None:
    numbers = array("I", (1, 2, 3))
    row = IdRow(numbers)
    longer, part, twin = row.followed_by([4]), row[1:], IdRow(row)
    numbers[0] = 9
    assert (row, longer, part, twin) == ((1, 2, 3), (1, 2, 3, 4), (2, 3), (1, 2, 3))


@given(ids, ids)
def test_hashes_are_those_of_the_ids_whether_they_were_sent_or_generated(prompt: list[int], output: list[int]) -> None:
    """As they were while prompts were tuples: what is stored anywhere is found by them."""
    numbers = [*prompt, *output]
    expected, parent = list[bytes](), bytes(ROOT)
    for start in range(0, len(numbers) - BLOCK + 1, BLOCK):
        parent = sha256(parent + b"".join(id.to_bytes(4, "little") for id in numbers[start : start + BLOCK])).digest()
        expected.append(parent)
    content = decoded(encoded(EncodedPrompt.of_text(prompt)), EncodedPrompt).token_ids
    chain = BlockChain(ROOT, BLOCK, content)
    chain.feed(output)
    assert chain.hashes == expected == BlockChain(ROOT, BLOCK, content.followed_by(output)).hashes
    rest = numbers[len(expected) * BLOCK :]
    assert chain.snapshot_key(len(numbers)) == snapshot_key(ROOT, BlockHash(parent), rest)


def test_a_prompt_that_arrives_is_no_number_a_token() -> None:
    """Of 20,000 different ids, the interpreter would hold 20,000 numbers; a block of a chain takes a few."""
    prompt = EncodedPrompt.of_text(range(1000, 1000 + NUM_TOKENS))
    sent = encoded(Submit(submission("a", ModelId("toy"), prompt, 4)))
    decoded(sent, ToChild)  # what is made once is made
    num_before = sys.getallocatedblocks()
    arrived = decoded(sent, ToChild).submission.prompt
    chain = BlockChain(ROOT, 256, arrived.token_ids)
    going_on = arrived.followed_by((1, 2, 3))
    parts = [arrived.token_ids[start : start + 2048] for start in range(0, NUM_TOKENS, 2048)]
    assert sys.getallocatedblocks() - num_before < NUM_TOKENS // 10
    assert (len(chain.hashes), len(going_on.token_ids), len(parts)) == (78, NUM_TOKENS + 3, 10)
    assert arrived == prompt


def test_a_long_one_is_shown_by_its_beginning() -> None:
    assert repr(IdRow((1, 2))) == "IdRow([1, 2])"
    assert repr(IdRow(range(NUM_TOKENS))) == f"IdRow({list(range(32))} and {NUM_TOKENS - 32} more)"


def test_a_part_does_not_keep_the_whole() -> None:
    tracemalloc.start()
    try:
        row = IdRow(range(NUM_TOKENS))
        part, (whole_bytes, _) = row[:256], tracemalloc.get_traced_memory()
        assert whole_bytes >= 4 * NUM_TOKENS
        del row
        assert tracemalloc.get_traced_memory()[0] < whole_bytes // 10
    finally:
        tracemalloc.stop()
    assert part == tuple(range(256))


tokens = st.lists(st.integers(0, 3), max_size=60)


def chain_of(token_ids: list[int], block_size: int = 4, root: Namespace = ROOT) -> BlockChain:
    chain = BlockChain(root, block_size)
    chain.feed(token_ids)
    return chain


@given(tokens, tokens)
def test_hashes_are_equal_exactly_as_far_as_the_prefixes_are(left: list[int], right: list[int]) -> None:
    one, other = chain_of(left), chain_of(right)
    for index in range(min(len(one.hashes), len(other.hashes))):
        end = (index + 1) * 4
        assert (one.hashes[index] == other.hashes[index]) == (left[:end] == right[:end])


@given(tokens, st.lists(st.integers(0, 60), max_size=5), st.integers(1, 9))
def test_splitting_the_stream_changes_nothing(token_ids: list[int], cuts: list[int], block_size: int) -> None:
    streamed = BlockChain(ROOT, block_size)
    became_full: list[BlockHash] = []
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    for start, end in pairwise(bounds):
        became_full += streamed.feed(token_ids[start:end])
    assert streamed.hashes == became_full == chain_of(token_ids, block_size).hashes
    assert len(streamed.hashes) == len(token_ids) // block_size


@given(tokens)
def test_another_root_shares_nothing(token_ids: list[int]) -> None:
    other = chain_of(token_ids, root=Namespace(b"o" * 32))
    assert not set(chain_of(token_ids).hashes) & set(other.hashes)


def test_hashes_are_those_that_stores_already_hold() -> None:
    grid = BlockGrid(4, 8, is_exact=True)
    fingerprint = Fingerprint(b"\x01" * 32, "sliced=KV", "bfloat16", grid, "mlx-lm 0.32", salt="tenant")
    root = fingerprint.namespace()
    assert root.hex() == "a9b480bd80c49e238419394520a9c021e4e92d7d6845f01d5ba1ec0579fe74c6"
    chain = BlockChain(root, 4, IdRow(range(10)))
    assert [hash.hex() for hash in chain.hashes] == [
        "cf5373a63279627d2605a046a9269009d756512434e1ad327282a666295b2183",
        "26326052992d7f466b4647cc80f479d8ea80e14f0756ba029bec8205f0574fcb",
    ]
    key = chain.snapshot_key(10)
    assert key.digest.hex() == "1fcd24542a6e6132b3eccece3b34a920b5abb21cbdba8a1370dd0df428877098"
    assert key == snapshot_key(root, BlockHash(chain.hashes[1]), [8, 9])


@given(tokens, tokens)
def test_what_two_prompts_share_is_what_is_equal_in_both(left: list[int], right: list[int]) -> None:
    one, other = chain_of(left), chain_of(right)
    shared = one.num_shared(other)
    assert shared == other.num_shared(one)
    assert left[:shared] == right[:shared]
    assert left[shared : shared + 1] != right[shared : shared + 1] or shared == min(len(left), len(right))


@given(tokens, tokens)
def test_snapshot_keys_are_equal_exactly_for_equal_partial_tokens(left: list[int], right: list[int]) -> None:
    parent = BlockHash(b"p" * 32)
    assert (snapshot_key(ROOT, parent, left) == snapshot_key(ROOT, parent, right)) == (left == right)
    assert snapshot_key(ROOT, parent, left).num_partial == len(left)
