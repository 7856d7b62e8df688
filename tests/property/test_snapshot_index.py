"""Finding one prompt's snapshots among those of others, against a list of all."""

from hypothesis import given
from hypothesis import strategies as st

from domain.hashing import BlockChain, snapshot_key
from domain.id_row import IdRow
from domain.ids import BlockHash
from domain.record import Namespace, SnapshotKey
from domain.snapshot_index import SnapshotIndex
from domain.snapshot_place import OwnSnapshots, SnapshotPlace, by_position, snapshot_places

ROOT = Namespace(b"r" * 32)
BLOCK = 4
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=21)


def key_at(prompt: list[int], position: int) -> SnapshotKey:
    chain = BlockChain(ROOT, BLOCK)
    chain.feed(prompt)
    whole = position // BLOCK
    return snapshot_key(ROOT, chain.parent(whole), prompt[whole * BLOCK : position])


def find(index: SnapshotIndex, prompt: list[int]) -> dict[int, SnapshotKey]:
    chain = BlockChain(ROOT, BLOCK, IdRow(prompt))
    places = snapshot_places(chain, len(chain.hashes))
    return by_position([index.find(ROOT, place) for place in places], BLOCK)


@given(st.lists(st.tuples(prompts, st.data()), max_size=6), prompts)
def test_a_prompt_finds_the_snapshots_of_its_own_beginnings(
    others: list[tuple[list[int], st.DataObject]], prompt: list[int]
) -> None:
    index, kept = SnapshotIndex(), list[tuple[int, ...]]()
    for other, data in others:
        ends = data.draw(st.sets(st.integers(1, len(other))))
        gone = data.draw(st.sets(st.sampled_from(sorted(ends)))) if ends else set()
        for end in ends:
            index.add(key_at(other, end))
        for end in gone:
            index.discard(key_at(other, end))
            index.discard(key_at(other, end))
        kept = [tokens for tokens in kept if tokens not in {tuple(other[:end]) for end in gone}]
        kept += [tuple(other[:end]) for end in ends - gone]
    expected = {len(tokens) for tokens in kept if tuple(prompt[: len(tokens)]) == tokens and len(tokens) < len(prompt)}
    found = find(index, prompt)
    assert found == {position: key_at(prompt, position) for position in expected}


@given(prompts)
def test_the_last_token_is_at_no_place(prompt: list[int]) -> None:
    index = SnapshotIndex()
    index.add(key_at(prompt, len(prompt)))
    assert find(index, prompt) == {}


@given(prompts, st.lists(st.integers(0, 21)))
def test_digests_are_those_of_the_keys_in_any_order(tokens: list[int], lengths: list[int]) -> None:
    own = OwnSnapshots(ROOT, SnapshotPlace(BlockHash(ROOT), IdRow(tokens)))
    for length in lengths:
        length = min(length, len(tokens))
        assert own.key(length) == snapshot_key(ROOT, BlockHash(ROOT), tokens[:length])
