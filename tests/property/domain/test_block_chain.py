"""Equal chains exactly for equal prefixes, however the tokens came in."""

from hashlib import sha256
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from domain.id_row import IdRow
from domain.ids import BlockHash
from domain.prefix.fingerprint import Fingerprint
from domain.prefix.hashing import BlockChain, block_hash, snapshot_key
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import Namespace

ROOT = Namespace(b"r" * 32)
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


@given(st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8))
def test_the_hash_is_the_documented_one(token_ids: list[int]) -> None:
    packed = b"".join(token.to_bytes(4, "little") for token in token_ids)
    first = sha256(ROOT + packed[:16]).digest()
    assert chain_of(token_ids).hashes == [first, sha256(first + packed[16:]).digest()]
    assert block_hash(BlockHash(first), token_ids[4:]) == chain_of(token_ids).hashes[1]


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
