"""Equal chains exactly for equal prefixes, however the tokens came in."""

from hashlib import sha256
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from domain.hashing import BlockChain, block_hash, snapshot_key
from domain.id_row import IdRow
from domain.ids import BlockHash
from domain.prompt_content import Media, PromptContent
from domain.record import Namespace

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
    image = Media(1, 3, b"d" * 32)
    assert block_hash(BlockHash(first), token_ids[4:], [image]) == sha256(first + packed[16:] + b"d" * 32).digest()


@given(tokens)
def test_another_root_shares_nothing(token_ids: list[int]) -> None:
    other = chain_of(token_ids, root=Namespace(b"o" * 32))
    assert not set(chain_of(token_ids).hashes) & set(other.hashes)


def test_media_digests_enter_their_block_and_all_after_it() -> None:
    plain = chain_of([1] * 12)
    content = PromptContent(IdRow((1,) * 12), None, (Media(5, 7, b"d" * 32),))
    media = BlockChain(ROOT, 4, content)
    assert [a == b for a, b in zip(plain.hashes, media.hashes, strict=True)] == [True, False, False]


@given(tokens, tokens)
def test_snapshot_keys_are_equal_exactly_for_equal_partial_tokens(left: list[int], right: list[int]) -> None:
    parent = BlockHash(b"p" * 32)
    assert (snapshot_key(ROOT, parent, left) == snapshot_key(ROOT, parent, right)) == (left == right)
    assert snapshot_key(ROOT, parent, left).num_partial == len(left)
