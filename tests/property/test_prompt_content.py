"""Prompts with media: what differs in an image shares nothing from there on, and of text nothing has changed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fake import ATTENTION, FakeOptions
from domain.block_grid import BlockGrid
from domain.fingerprint import Fingerprint
from domain.hashing import BlockChain, snapshot_key
from domain.id_row import IdRow
from domain.ids import BlockHash, ModelId, RequestId, SequenceId
from domain.prompt_content import EncodedPrompt, Media, PromptContent
from domain.record import Namespace
from domain.snapshot_place import OwnSnapshots, snapshot_places
from tests.support.cache_driver import CacheDriver, Job, plain_answer

ROOT = Namespace(b"r" * 32)
BLOCK = 4


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


@st.composite
def contents(draw: st.DrawFn) -> PromptContent:
    """Invented media in a prompt. Their key ids say nothing about them: only digests tell them apart."""
    length = draw(st.integers(1, 30))
    edges = sorted(draw(st.sets(st.integers(0, length), max_size=6)))
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    media = tuple(Media(start, end, digest(draw(st.integers(0, 3)))) for start, end in spans)
    key_ids = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    return PromptContent(IdRow((9,) * length), IdRow(key_ids), media)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[PromptContent, PromptContent, int]:
    """Equal in ids and places of media; and from where on a digest differs."""
    one = draw(contents())
    numbers = draw(st.lists(st.integers(0, 3), min_size=len(one.media), max_size=len(one.media)))
    media = tuple(replace(was, digest=digest(number)) for was, number in zip(one.media, numbers, strict=True))
    differs = [was.start for was, now in zip(one.media, media, strict=True) if was != now]
    return one, replace(one, media=media), min(differs, default=len(one.key_ids))


@given(pairs())
def test_equal_key_ids_with_other_media_share_no_hash(pair: tuple[PromptContent, PromptContent, int]) -> None:
    left, right, differs_at = pair
    one, other = (BlockChain(ROOT, BLOCK, content) for content in (left, right))
    for index, hashes in enumerate(zip(one.hashes, other.hashes, strict=True)):
        assert (hashes[0] == hashes[1]) == ((index + 1) * BLOCK <= differs_at)
    for position in range(one.num_prompt + 1):
        assert (one.snapshot_key(position) == other.snapshot_key(position)) == (position <= differs_at)
    assert one.num_shared(other) == other.num_shared(one) == differs_at


@given(contents(), contents())
def test_what_two_prompts_share_is_what_is_equal_in_both(left: PromptContent, right: PromptContent) -> None:
    one, other = (BlockChain(ROOT, BLOCK, content) for content in (left, right))
    shared = one.num_shared(other)
    assert shared == other.num_shared(one)
    assert left.key_ids[:shared] == right.key_ids[:shared]
    assert one.snapshot_key(shared) == other.snapshot_key(shared)


@given(contents())
def test_a_prompts_own_snapshots_are_named_with_their_media(content: PromptContent) -> None:
    chain = BlockChain(ROOT, BLOCK, content)
    for index, place in enumerate(snapshot_places(chain, len(chain.hashes))):
        own = OwnSnapshots(ROOT, place)
        for num_partial in (*range(own.max_partial + 1), 0):
            assert own.key(num_partial) == chain.snapshot_key(index * BLOCK + num_partial)


@given(contents(), st.lists(st.integers(0, 3), max_size=12), st.integers(0, 12))
def test_what_is_generated_goes_on_from_the_media(content: PromptContent, output: list[int], cut: int) -> None:
    chain = BlockChain(ROOT, BLOCK, content)
    chain.feed(output[:cut])
    twin = chain.fork()
    chain.feed(output[cut:])
    whole = content.followed_by(output)
    assert (whole.token_ids, whole.key_ids) == ((*content.token_ids, *output), (*content.key_ids, *output))
    assert chain.hashes == BlockChain(ROOT, BLOCK, whole).hashes
    assert twin.num_tokens == chain.num_prompt + len(output[:cut])
    twin.feed(output[cut:])
    assert twin.hashes == chain.hashes


@pytest.mark.parametrize(
    "media",
    [[(0, 9)], [(0, 3), (2, 4)], [(2, 4), (0, 1)]],
    ids=["outside", "overlapping", "descending"],
)
def test_media_that_cannot_stand_there_are_refused(media: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="media"):
        PromptContent(IdRow((1,) * 5), None, tuple(Media(start, end, digest(1)) for start, end in media))


def test_the_rows_are_of_equal_length_and_digests_whole() -> None:
    with pytest.raises(ValueError, match="key ids"):
        PromptContent(IdRow((1, 2)), IdRow((1,)))
    with pytest.raises(ValueError, match="digest"):
        Media(0, 1, b"short")


def test_text_is_hashed_as_ever() -> None:
    """Worked out before prompts had media; what is stored anywhere is named like this."""
    grid = BlockGrid(4, 8, is_exact=True)
    fingerprint = Fingerprint(b"\x01" * 32, "sliced=KV", "bfloat16", grid, "mlx-lm 0.32", salt="tenant")
    root = fingerprint.namespace()
    assert root.hex() == "a9b480bd80c49e238419394520a9c021e4e92d7d6845f01d5ba1ec0579fe74c6"
    chain = BlockChain(root, 4, PromptContent.of_text(range(10)))
    assert [hash.hex() for hash in chain.hashes] == [
        "cf5373a63279627d2605a046a9269009d756512434e1ad327282a666295b2183",
        "26326052992d7f466b4647cc80f479d8ea80e14f0756ba029bec8205f0574fcb",
    ]
    key = chain.snapshot_key(10)
    assert key.digest.hex() == "1fcd24542a6e6132b3eccece3b34a920b5abb21cbdba8a1370dd0df428877098"
    assert key == snapshot_key(root, BlockHash(chain.hashes[1]), [8, 9])


def asked(driver: CacheDriver, content: PromptContent, number: int) -> Job:
    """One request with this content, to its end."""
    id, prompt = SequenceId(number), EncodedPrompt(content)
    driver.model.open(id)
    cache = driver.cache.begin(id, RequestId(f"m{number}"), ModelId("toy"), prompt)
    cache.prepare()
    job = Job(id, prompt, 3, cache)
    driver.finish(job)
    return job


def test_the_model_is_fed_token_ids_and_images_are_told_apart() -> None:
    options = FakeOptions(vocab_size=1 << 20, alphabet=range(1 << 20), eos_every=0, layout=ATTENTION)
    driver = CacheDriver(options)
    token_ids, key_ids = tuple(range(100)), IdRow((*range(40), *range(1 << 31, (1 << 31) + 20), *range(60, 100)))
    cat, dog = (PromptContent(IdRow(token_ids), key_ids, (Media(40, 60, digest(at)),)) for at in (1, 2))
    first = asked(driver, cat, 1)
    assert (first.computed, asked(driver, cat, 2).computed) == (99, 0)
    other = asked(driver, dog, 3)
    assert other.computed == 99 - 32  # up to the block in which the image begins
    assert first.output == other.output == plain_answer(options, token_ids, 3)
