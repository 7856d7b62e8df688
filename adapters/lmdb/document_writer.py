"""The write side of a document store: puts and deletions, each in transactions of bounded work, the oldest first.

Nothing here contains failures: whatever LMDB or the volume raises aborts the transaction and reaches the caller.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import lmdb

from adapters.lmdb.document_rows import STATE_KEY, DocumentRow, DocumentState
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import Damaged
from adapters.lmdb.payload import cut
from adapters.lmdb.room import Quota
from adapters.lmdb.rows import PIECE_KEY_BYTES, clock_key, piece_key
from domain.document import Document, DocumentId

_SLICE = 256
_ROOM_ROUNDS = 3
_COPIED_PAGES = 24
_INDEX_BYTES = 320
"""Of a document's row and its place in the order."""


@dataclass(frozen=True, slots=True)
class EncodedDocument:
    """Ready to be written. `check`: of the stream, with the document's id."""

    document: Document
    stream: tuple[memoryview, ...]
    check: int

    @property
    def stream_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.stream)


class DocumentQuota(Quota):
    """Small values spread over the trees by their ids: one batch copies many of their pages, and needs more reserve."""

    @property
    def reserve_pages(self) -> int:
        return max(64, self.quota_bytes // self.page_bytes // 4)


class DocumentWriter:
    """`expires_before_s` says which documents are too old now, as a Unix time; None keeps all. `on_evicted` is told how
    many documents went, after each commit."""

    def __init__(
        self,
        environment: Environment,
        quota_bytes: int,
        expires_before_s: Callable[[], int | None],
        on_evicted: Callable[[int], None],
    ) -> None:
        self._environment = environment
        self._quota_bytes = quota_bytes
        self._expires_before_s = expires_before_s
        self._on_evicted = on_evicted

    @property
    def quota(self) -> Quota:
        return DocumentQuota(self._quota_bytes, self._environment.geometry.page_bytes)

    def put(self, batch: Sequence[EncodedDocument]) -> bool:
        """False when they do not fit. Raises MapFullError when even evicting and waiting did not help."""
        needed = self._needed_pages(batch)
        if needed > self.quota.limit_pages:
            return False
        with self._environment.exclusive():
            for rounds in range(_ROOM_ROUNDS):
                try:
                    return self._put(batch, self.quota.limit_pages - needed, needed)
                except lmdb.MapFullError:
                    # Either a reader keeps free pages from being used, or they lie too scattered for a piece.
                    if self._environment.has_lagging_reader():
                        raise
                    with self._environment.reading() as txn:
                        used = self._environment.trees.used_pages(txn)
                    self._evict_to(used - (2 << rounds) * needed)
            return self._put(batch, self.quota.limit_pages - needed, needed)

    def shrink(self) -> int:
        """Evict down to the limit, and what is too old; returns how many documents went."""
        return self._evict_to(self.quota.limit_pages)

    def delete(self, ids: Sequence[DocumentId]) -> int:
        """How many of them were there."""
        num_gone = 0
        for start in range(0, len(ids), _SLICE):
            with self._environment.writing() as txn:
                change = _Change(txn, self._environment)
                num_gone += sum([change.remove(id) for id in ids[start : start + _SLICE]])
                change.finish()
        return num_gone

    def _put(self, batch: Sequence[EncodedDocument], max_used: int, needed: int) -> bool:
        while True:
            with self._environment.writing() as txn:
                change = _Change(txn, self._environment)
                evicted = change.evict(max_used, self._expires_before_s())
                # Pages that were freed just now cannot be used in this transaction.
                is_ready = change.used_pages <= max_used and not (evicted and self.quota.is_large(needed))
                if is_ready:
                    for one in batch:
                        change.insert(one)
                change.finish()
            self._on_evicted(evicted)
            if is_ready:
                return True
            if not evicted:
                return False
            self._advance()

    def _evict_to(self, max_used: int) -> int:
        total = 0
        while True:
            with self._environment.writing() as txn:
                change = _Change(txn, self._environment)
                evicted = change.evict(max_used, self._expires_before_s())
                change.finish()
            total += evicted
            self._on_evicted(evicted)
            if not evicted:
                self._advance()
                return total

    def _advance(self) -> None:
        """Pages freed by a transaction can be used two transactions later."""
        for _ in range(2):
            with self._environment.writing() as txn:
                _Change(txn, self._environment).finish()

    def _needed_pages(self, batch: Sequence[EncodedDocument]) -> int:
        """Upper bound on what a batch adds: pages of trees are at least half full."""
        geometry, in_leaves, pages = self._environment.geometry, 0, _COPIED_PAGES
        for one in batch:
            in_leaves += _INDEX_BYTES + len(one.document.model.encode())
            for size in geometry.piece_sizes(one.stream_bytes):
                in_leaves += geometry.node_bytes(PIECE_KEY_BYTES, size)
                pages += geometry.overflow_pages(PIECE_KEY_BYTES, size)
        return pages + -(-2 * in_leaves // geometry.page_bytes)


class _Change:
    """One write transaction."""

    def __init__(self, txn: "lmdb.Transaction[bytes]", environment: Environment) -> None:
        self._txn = txn
        self._trees = environment.trees
        self._geometry = environment.geometry
        value = txn.get(STATE_KEY, db=self._trees.sys)
        self._state = DocumentState.unpack(value) if value is not None else DocumentState()

    @property
    def used_pages(self) -> int:
        return self._trees.used_pages(self._txn)

    def insert(self, encoded: EncodedDocument) -> None:
        document, state = encoded.document, self._state
        id = document.key.id
        self.remove(id)
        sizes = self._geometry.piece_sizes(encoded.stream_bytes)
        for piece, data in enumerate(cut(encoded.stream, sizes)):
            self._txn.put(piece_key(state.next_id, piece), data, db=self._trees.dat)
        row = DocumentRow(
            state.next_id,
            state.clock,
            document.created_s,
            encoded.stream_bytes,
            encoded.check,
            len(sizes),
            document.key.owner.tenant,
            document.model,
        )
        self._txn.put(id, row.pack(id), db=self._trees.rec)
        self._txn.put(clock_key(state.clock), id, db=self._trees.lru)
        state.next_id += 1
        state.clock += 1

    def remove(self, id: DocumentId) -> bool:
        value = self._txn.get(id, db=self._trees.rec)
        if value is None:
            return False
        row = DocumentRow.unpack(id, value)
        for piece in range(row.num_pieces):
            self._txn.delete(piece_key(row.body, piece), db=self._trees.dat)
        self._txn.delete(clock_key(row.clock), db=self._trees.lru)
        self._txn.delete(id, db=self._trees.rec)
        return True

    def evict(self, max_used: int, expires_before_s: int | None) -> int:
        """The oldest go until at most `max_used` pages are in use, none is too old, or the slice is full."""
        for count in range(_SLICE):
            with self._txn.cursor(self._trees.lru) as cursor:
                if not cursor.first():
                    return count
                id = cursor.value()
            value = self._txn.get(id, db=self._trees.rec)
            if value is None:
                raise Damaged("the order of puts names a document that is not there")
            is_old = expires_before_s is not None and DocumentRow.unpack(id, value).created_s <= expires_before_s
            if not is_old and self.used_pages <= max_used:
                return count
            self.remove(id)
        return _SLICE

    def finish(self) -> None:
        self._txn.put(STATE_KEY, self._state.pack(), db=self._trees.sys)


__all__ = ("DocumentWriter", "EncodedDocument")
