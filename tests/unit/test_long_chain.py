"""A long prompt is looked up by the hundred of blocks: what each look at it needs is made once, and cut when asked."""

import pytest

from domain.hashing import BlockChain
from domain.holdings import Holdings
from domain.id_row import IdRow
from domain.record import Namespace
from domain.snapshot_place import snapshot_places

ROOT = Namespace(bytes(32))
BLOCK = 4


def test_the_keys_of_a_prompt_are_made_once() -> None:
    chain = BlockChain(ROOT, BLOCK, IdRow(range(10)))
    keys = chain.prompt_keys()
    chain.feed(range(10))
    assert chain.prompt_keys() is keys
    assert chain.fork().prompt_keys() is keys
    assert [key.hash for key in keys] == chain.hashes[:2]


def test_what_follows_a_prompt_is_chained_to_its_root_and_its_full_blocks() -> None:
    chain = BlockChain(ROOT, BLOCK, IdRow(range(10)))
    chain.feed(range(10))
    assert chain.ends() == tuple(map(chain.parent, range(3)))


def test_a_place_shares_the_ids_of_its_prompt_until_it_is_asked() -> None:
    chain = BlockChain(ROOT, BLOCK, IdRow(range(10)))
    first, second, third = snapshot_places(chain, 2)
    assert all(place.ids is chain.prompt for place in (first, second, third))
    assert [place.next_ids for place in (first, second, third)] == [[0, 1, 2], [4, 5, 6], [8]]


@pytest.mark.parametrize(
    ("blocks", "most", "expected"),
    [((), 3, 0), ((True, True), 3, 2), ((True, True, True, False), 3, 3), ((True, False, True), 3, 1)],
)
def test_the_blocks_before_the_first_gap_are_counted(blocks: tuple[bool, ...], most: int, expected: int) -> None:
    assert Holdings(blocks).num_leading(most) == expected
