"""Records of two models for tests of a whole store: two namespaces, branches and snapshots."""

from domain.prefix.record import Record
from tests.support.stores.store_records import chain, namespace_of, snapshot

ONE, TWO = namespace_of("org/one"), namespace_of("org/two")


def content() -> list[Record]:
    """Two models; branches, a snapshot inside the first block, one behind a block, and one at its very end."""
    one, two = chain(ONE, 3, size_bytes=300), chain(TWO, 2, size_bytes=100)
    branch = chain(ONE, 1, seed=3, size_bytes=50, after=one[1])
    return [*one, *branch, snapshot(branch[-1], [1, 2], 40), snapshot(ONE, [4], 40), snapshot(one[0], [], 40), *two]
