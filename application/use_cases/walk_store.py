"""Visiting every record of a namespace of a local store, parents before what follows them."""

from collections.abc import Iterator, Sequence

from application.ports.block_store import NamespaceUsage, StoreAdministration
from domain.ids import BlockHash
from domain.namespace_choice import NamespaceChoice
from domain.record import BlockKey, Namespace, RecordKey


def walk(store: StoreAdministration, namespace: Namespace) -> Iterator[RecordKey]:
    """Keys in an order in which they can be put again. Memory grows with the width of the tree, not with its depth."""
    waiting = [BlockHash(namespace)]
    while waiting:
        for key in store.dependants(namespace, waiting.pop()):
            yield key
            if isinstance(key, BlockKey):
                waiting.append(key.hash)


def chosen(store: StoreAdministration, choice: NamespaceChoice) -> Sequence[NamespaceUsage]:
    return [usage for usage in store.usage().namespaces if choice.includes(usage.info)]


__all__ = ("chosen", "walk")
