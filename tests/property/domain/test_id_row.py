"""A row of ids is what a tuple of them is, at four bytes each and with no number made that nobody looks at."""

import pickle
import sys
import tracemalloc
from array import array
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.engine_process.messages import Submit, ToChild, decoded, encoded
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.ids import BlockHash, ModelId
from domain.prefix.hashing import BlockChain, snapshot_key
from domain.prefix.prompt_content import EncodedPrompt
from domain.prefix.record import Namespace
from tests.support.engines.sync_engine import submission

ROOT = Namespace(b"r" * 32)
BLOCK = 4
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
