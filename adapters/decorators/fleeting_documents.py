"""Two document stores as one: what is fleeting is kept in memory, everything else where it stays."""

from collections.abc import Callable, Sequence

from application.ports.document_store import DocumentStore, DocumentUsage, Erased
from domain.document import Document, DocumentInfo, DocumentKey


class FleetingDocuments:
    """A DocumentStore that owns both. A `put` that holds a fleeting document is one of `memory` alone."""

    def __init__(self, memory: DocumentStore, kept: DocumentStore) -> None:
        self._memory = memory
        self._kept = kept

    def put(self, documents: Sequence[Document]) -> bool:
        into, beside = (self._memory, self._kept) if _has_fleeting(documents) else (self._kept, self._memory)
        if not into.put(documents):
            return False
        for key in [
            one.key for one, old in zip(documents, beside.get([one.key for one in documents]), strict=True) if old
        ]:
            beside.delete(key)
        return True

    def get(self, keys: Sequence[DocumentKey]) -> Sequence[Document | None]:
        found = list(self._memory.get(keys))
        missing = [index for index, one in enumerate(found) if one is None]
        for index, one in zip(missing, self._kept.get([keys[index] for index in missing]), strict=True):
            found[index] = one
        return found

    def delete(self, key: DocumentKey) -> bool:
        was_fleeting, was_kept = self._memory.delete(key), self._kept.delete(key)
        return was_fleeting or was_kept

    def erase(self, includes: Callable[[DocumentInfo], bool] | None = None) -> Erased:
        fleeting, kept = self._memory.erase(includes), self._kept.erase(includes)
        num_bytes = fleeting.num_bytes + kept.num_bytes
        return Erased(fleeting.num_documents + kept.num_documents, num_bytes, kept.problem)

    def usage(self) -> DocumentUsage:
        """Of both together."""
        fleeting, kept = self._memory.usage(), self._kept.usage()
        return DocumentUsage(
            fleeting.quota_bytes + kept.quota_bytes,
            fleeting.stored_bytes + kept.stored_bytes,
            fleeting.num_documents + kept.num_documents,
            fleeting.evicted + kept.evicted,
            kept.faults,
        )

    def close(self) -> None:
        self._memory.close()
        self._kept.close()


def _has_fleeting(documents: Sequence[Document]) -> bool:
    return any(one.is_fleeting for one in documents)


__all__ = ("FleetingDocuments",)
