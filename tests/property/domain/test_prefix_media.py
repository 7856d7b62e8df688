"""Images in the prefix cache: prompts share what they have in common, and no image is taken for another."""

from hashlib import sha256
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fake.options import ATTENTION
from domain.id_row import IdRow
from domain.prefix.explanation import Explanation, StopReason, compared_with_stored, explanation_sentence
from domain.prefix.hashing import BlockChain
from domain.prefix.index import HOT, PrefixIndex, ReuseRules
from domain.prefix.prompt_content import FIRST_MEDIA_ID, BlockGrid, EncodedPrompt, MediaSpan
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo

ROOT, BLOCK, PAD = Namespace(b"r" * 32), 4, 7
INFO = NamespaceInfo(ROOT, "toy", "{}")
RULES = ReuseRules.of(ATTENTION, BlockGrid(BLOCK, BLOCK))


def prompt_of(*parts: int | tuple[bytes, int]) -> EncodedPrompt:
    """Returns a prompt of tokens and of images, each a digest and a number of tokens."""
    ids, media = list[int](), list[MediaSpan]()
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
            continue
        media.append(MediaSpan(len(ids), part[1], part[0], number=len(media) + 1))
        ids += [PAD] * part[1]
    return EncodedPrompt(IdRow(ids), media=tuple(media))


def chain_of(prompt: EncodedPrompt, block_size: int = BLOCK) -> BlockChain:
    return BlockChain.of(ROOT, block_size, prompt)


def digest_of(number: int) -> bytes:
    return sha256(number.to_bytes(8, "big")).digest()


def forged_pair() -> tuple[bytes, bytes]:
    """Returns two digests whose first key ids are equal: 31 bits, which a client finds in a second."""
    seen = dict[int, bytes]()
    for number in count():
        digest = digest_of(number)
        (id,) = MediaSpan(0, 1, digest).key_ids()
        if id in seen:
            return seen[id], digest
        seen[id] = digest
    raise AssertionError


@pytest.fixture(scope="module")
def forged() -> tuple[bytes, bytes]:
    return forged_pair()


images = st.tuples(st.integers(0, 1).map(digest_of), st.just(5))
parts = st.lists(st.one_of(st.integers(0, 1), images), max_size=12)


@given(parts, parts, st.integers(1, 6))
def test_two_prompts_share_what_is_equal_in_both(left: list[int], right: list[int], block_size: int) -> None:
    """An image stands for one thing: a prompt of 0, 1 and two images is compared part by part."""
    one, other = chain_of(prompt_of(*left), block_size), chain_of(prompt_of(*right), block_size)
    num_equal = next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), None)
    num_equal = min(len(left), len(right)) if num_equal is None else num_equal
    shared = len(prompt_of(*left[:num_equal]).token_ids)
    assert one.num_shared(other) == other.num_shared(one) == shared
    common = [mine == theirs for mine, theirs in zip(one.hashes, other.hashes, strict=False)]
    assert sum(common) == min(shared // block_size, len(one.hashes), len(other.hashes))
    for position in range(1, min(one.num_prompt, other.num_prompt) + 1):
        assert (one.snapshot_key(position) == other.snapshot_key(position)) == (position <= shared)


def test_key_ids_are_token_ids_of_text_and_above_every_vocabulary_in_images() -> None:
    prompt = prompt_of(1, 2, (digest_of(0), 3), 3, (digest_of(1), 2))
    ids = list(prompt.key_ids)
    assert [ids[at] for at in (0, 1, 5)] == [1, 2, 3]
    assert min(ids[2:5] + ids[6:]) >= FIRST_MEDIA_ID
    assert prompt.key_ids == prompt_of(1, 2, (digest_of(0), 3), 3, (digest_of(1), 9)).key_ids[:8]
    text = prompt_of(1, 2, 3)
    assert text.key_ids is text.token_ids


def test_a_prefix_that_ends_in_an_image_is_of_that_image_only(forged: tuple[bytes, bytes]) -> None:
    """The first ids of two images agree: hashes of whole blocks, of partial blocks and shared positions do not."""
    mine, other = (prompt_of(1, 2, 3, (digest, 9), 4) for digest in forged)
    assert mine.key_ids[:4] == other.key_ids[:4]
    left, right = chain_of(mine), chain_of(other)
    assert left.num_shared(right) == right.num_shared(left) == 3
    assert left.hashes[0] != right.hashes[0]
    left, right = chain_of(mine, 256), chain_of(other, 256)
    assert left.num_shared(right) == 3
    assert left.snapshot_key(3) == right.snapshot_key(3)
    assert left.snapshot_key(4) != right.snapshot_key(4)


def test_a_kept_snapshot_in_an_image_is_found_by_the_same_image_only(forged: tuple[bytes, bytes]) -> None:
    rules = ReuseRules.of(ATTENTION, BlockGrid(256, 256))
    chain, twin, thief = (chain_of(prompt_of(1, 2, 3, (digest, 9), 4), 256) for digest in (forged[0], *forged))
    index = PrefixIndex(INFO)
    index.add([chain.snapshot_key(position) for position in (2, 4, 8)], HOT)
    assert index.match(twin, rules).position == 8
    assert index.match(thief, rules).position == 2


def test_a_block_in_the_middle_of_an_image_is_of_that_image(forged: tuple[bytes, bytes]) -> None:
    index, chain = PrefixIndex(INFO), chain_of(prompt_of((forged[0], 10), 1))
    index.add([BlockKey(ROOT, hash) for hash in chain.hashes], HOT)
    assert index.match(chain, RULES).position == 8
    assert index.match(chain_of(prompt_of((forged[1], 10), 1)), RULES).position == 0


def test_what_follows_an_image_is_continued_by_what_was_generated() -> None:
    prompt = prompt_of(1, (digest_of(0), 5))
    chain, longer = chain_of(prompt), chain_of(prompt.followed_by([8, 9]))
    chain.feed([8, 9])
    assert chain.hashes == longer.hashes
    assert chain.snapshot_key(7) == longer.snapshot_key(7)


def test_an_explanation_names_the_image_that_differs() -> None:
    asked = prompt_of(1, 2, (digest_of(0), 3), 5, (digest_of(1), 3), 6)
    kept = prompt_of(1, 2, (digest_of(0), 3), 5, (digest_of(2), 3), 6)
    found = Explanation(10, StopReason.NEVER_SEEN)
    found = compared_with_stored(found, asked.key_ids, [kept.key_ids], asked.media)
    assert found.divergence is not None
    assert (found.divergence.position, found.divergence.image) == (6, 2)
    assert explanation_sentence(found) == "From token 6 on image 2 of the prompt differs from what is stored."
    assert found.header().endswith("diverged=6; image=2")
    assert found.without_tokens().divergence == found.divergence.__class__(6, (), (), None, stored=None, image=2)
    shown = found.with_text(lambda ids: "".join(map(str, ids))).divergence
    assert shown is not None
    assert (shown.before, shown.prompt, shown.stored) == ("12[image]5", "[image]6", "[image]6")
