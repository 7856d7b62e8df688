"""Visiting every record of a namespace through the BlockStore port, parents before what hangs on them."""

from collections.abc import Iterator, Sequence

from application.ports.block_store import BlockStore, NamespaceUsage
from domain.ids import BlockHash
from domain.namespace_choice import NamespaceChoice
from domain.record import Namespace, RecordKey

ALL = 1 << 31


def walk(store: BlockStore, namespace: Namespace) -> Iterator[RecordKey]:
    """Keys in an order in which they can be put again. Memory grows with the width of the tree, not with its depth."""
    waiting = [BlockHash(namespace)]
    while waiting:
        block = waiting.pop()
        yield from store.snapshots(namespace, [block])[0]
        for key, _ in store.children(namespace, block, ALL):
            yield key
            waiting.append(key.hash)


def chosen(store: BlockStore, choice: NamespaceChoice) -> Sequence[NamespaceUsage]:
    return [usage for usage in store.usage().namespaces if choice.includes(usage.info)]


__all__ = ("ALL", "chosen", "walk")
