"""Documents in memory: the reference of the contract, and what a server without a store keeps them in."""

from collections.abc import Callable, Sequence
from threading import Lock

from application.ports.clock import Clock
from application.ports.document_store import DocumentUsage, Erased
from domain.document import Document, DocumentId, DocumentInfo, DocumentKey

OVERHEAD_BYTES = 512
"""Of a document beside its body: key, row and objects."""


class MemoryDocumentStore:
    """A dictionary in the order of puts."""

    def __init__(self, quota_bytes: int, clock: Clock, *, max_age_s: int | None = None) -> None:
        self._quota_bytes = quota_bytes
        self._clock = clock
        self._max_age_s = max_age_s
        self._lock = Lock()
        self._documents: dict[DocumentId, Document] = {}
        self._stored_bytes = 0
        self._evicted = 0
        self._is_closed = False

    def put(self, documents: Sequence[Document]) -> bool:
        with self._lock:
            needed = sum(_cost(one) for one in {one.key.id: one for one in documents}.values())
            if self._is_closed or needed > self._quota_bytes:
                return False
            for one in documents:
                self._remove(one.key.id)
                self._documents[one.key.id] = one
                self._stored_bytes += _cost(one)
            while self._stored_bytes > self._quota_bytes or self._is_expired(
                next(iter(self._documents.values()), None)
            ):
                self._remove(next(iter(self._documents)))
                self._evicted += 1
            return True

    def get(self, keys: Sequence[DocumentKey]) -> Sequence[Document | None]:
        with self._lock:
            found = [self._documents.get(key.id) for key in keys]
            return [None if self._is_expired(one) else one for one in found]

    def delete(self, key: DocumentKey) -> bool:
        with self._lock:
            return not self._is_expired(self._remove(key.id), otherwise=True)

    def erase(self, includes: Callable[[DocumentInfo], bool] | None = None) -> Erased:
        with self._lock:
            before_bytes = self._stored_bytes
            gone = [id for id, one in self._documents.items() if includes is None or includes(_info(one))]
            for id in gone:
                self._remove(id)
            return Erased(len(gone), before_bytes - self._stored_bytes)

    def usage(self) -> DocumentUsage:
        with self._lock:
            return DocumentUsage(self._quota_bytes, self._stored_bytes, len(self._documents), self._evicted)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._documents.clear()
            self._stored_bytes = 0

    @property
    def _oldest(self) -> Document | None:
        return next(iter(self._documents.values()), None)

    def _remove(self, id: DocumentId) -> Document | None:
        if (gone := self._documents.pop(id, None)) is not None:
            self._stored_bytes -= _cost(gone)
        return gone

    def _is_expired(self, one: Document | None, *, otherwise: bool = False) -> bool:
        """`otherwise`: the answer for none."""
        if one is None:
            return otherwise
        return self._max_age_s is not None and one.created_s + self._max_age_s <= self._clock.unix_ns() // 10**9


def _cost(one: Document) -> int:
    return OVERHEAD_BYTES + len(one.body)


def _info(one: Document) -> DocumentInfo:
    return DocumentInfo(one.key.owner.tenant, one.model, one.created_s)


__all__ = ("MemoryDocumentStore",)
