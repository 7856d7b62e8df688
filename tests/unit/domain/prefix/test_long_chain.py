"""A long prompt is looked up by the hundred of blocks: what each look at it needs is made once, and cut when asked."""

from domain.id_row import IdRow
from domain.prefix.hashing import BlockChain
from domain.prefix.record import Namespace

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
