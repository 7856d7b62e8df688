"""What follows what: records found from the block they follow.

A record may come before its parent, and stay after it. Not safe for threads: whoever owns it holds a lock.
"""

from collections.abc import Collection, Set

from domain.ids import BlockHash
from domain.prefix.record import BlockKey, Record, RecordKey

_NONE: frozenset[RecordKey] = frozenset()


def parent_of(record: Record) -> BlockKey:
    """The block that a record follows. For the first of a chain it is the namespace's root, which is no record."""
    return BlockKey(record.key.namespace, record.parent)


def is_first(record: Record) -> bool:
    """Whether it follows the root of its namespace."""
    return record.parent == BlockHash(record.key.namespace)


class RecordLinks:
    """See the module docstring."""

    def __init__(self) -> None:
        self._following: dict[BlockKey, set[RecordKey]] = {}

    def add(self, record: Record) -> None:
        """Repeating it does nothing."""
        self._following.setdefault(parent_of(record), set()).add(record.key)

    def discard(self, record: Record) -> None:
        """A record that was added."""
        parent = parent_of(record)
        self._following[parent].discard(record.key)
        if not self._following[parent]:
            del self._following[parent]

    def following(self, key: RecordKey) -> Set[RecordKey]:
        """What directly follows a block, or a root; nothing follows a snapshot."""
        return self._following.get(key, _NONE) if isinstance(key, BlockKey) else _NONE

    def parents(self) -> Collection[BlockKey]:
        """All blocks and roots that something follows."""
        return self._following.keys()

    def problems(self, records: Collection[Record]) -> list[str]:
        """What does not agree with `records`, all that there are; a line each."""
        links = {(parent, key) for parent, keys in self._following.items() for key in keys}
        known = {(parent_of(record), record.key) for record in records}
        found = [f"{key} is not linked from its parent" for _, key in known - links]
        found += [f"{parent} links to {key}" for parent, key in links - known]
        return found
