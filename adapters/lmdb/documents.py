"""Documents on LMDB: a small database of its own beside the blocks, with trouble contained as theirs is.

Bodies are frames of the codec, in pieces, with a check that covers the document's id; see docs/store-format.md.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import lmdb

from adapters.lmdb import faults
from adapters.lmdb.clearing import compacted, replaced
from adapters.lmdb.containment import FAILURES, Containment
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.document_rows import DOCUMENTS, DocumentRow
from adapters.lmdb.document_writer import DocumentWriter, EncodedDocument
from adapters.lmdb.environment import Environment
from adapters.lmdb.faults import FaultLog
from adapters.lmdb.opening import open_for_writing
from adapters.lmdb.payload import check_of
from adapters.lmdb.rows import piece_key
from adapters.lmdb.volume import free_bytes
from application.ports.clock import Clock
from application.ports.document_store import DocumentUsage, Erased
from application.ports.event_sink import EventSink
from application.ports.state_codec import CodecError, StateCodec
from domain.document import Document, DocumentId, DocumentInfo, DocumentKey
from domain.ids import GroupIndex
from domain.payload import HostPayload, TensorSpec

_WHOLE = GroupIndex(0)
_PAUSE_S = 60.0


class LmdbDocumentStore:
    """Opens on construction; raises StoreOpenError. One process a directory. `quota_bytes`: the file never becomes
    larger. `free_reserve_bytes`: what writing leaves free on the volume."""

    def __init__(
        self,
        path: Path,
        quota_bytes: int,
        codec: StateCodec,
        events: EventSink,
        clock: Clock,
        *,
        max_age_s: int | None = None,
        free_reserve_bytes: int = 0,
    ) -> None:
        self._quota_bytes = quota_bytes
        self._codec = codec
        self._clock = clock
        self._max_age_s = max_age_s
        self._free_reserve_bytes = free_reserve_bytes
        self._directory = StoreDirectory(path, DOCUMENTS)
        self._faults = FaultLog(events, clock)
        self._environment = Environment(self._directory, map_bytes=quota_bytes, sync=True, read_only=False)
        self._writer = DocumentWriter(self._environment, quota_bytes, self._expires_before_s, self._note_evicted)
        self._containment = Containment(
            self._directory,
            self._environment,
            self._faults,
            clock,
            reopen=self._open,
            read_only=False,
            pause_s=_PAUSE_S,
        )
        self._evicted = 0
        self._open()

    def put(self, documents: Sequence[Document]) -> bool:
        if any(one.is_fleeting for one in documents):
            return False
        return self._containment.write(lambda: self._put(documents), otherwise=False)

    def get(self, keys: Sequence[DocumentKey]) -> Sequence[Document | None]:
        return [self._get(key) for key in keys]

    def delete(self, key: DocumentKey) -> bool:
        return self._containment.write(lambda: self._delete(key), otherwise=False)

    def erase(self, includes: Callable[[DocumentInfo], bool] | None = None) -> Erased:
        refused = Erased(0, 0, f"{self._directory.path} cannot be written to now; see its faults")
        return self._containment.write(lambda: self._erase(includes), refused)

    def usage(self) -> DocumentUsage:
        stored_bytes, num_documents = self._containment.read(self._size, (0, 0))
        return DocumentUsage(self._quota_bytes, stored_bytes, num_documents, self._evicted, self._faults.counts())

    def close(self) -> None:
        with self._containment.lock:
            if self._containment.is_closed:
                return
            self._containment.is_closed = True
        try:
            self._environment.close(sync=True)
            if self._containment.broken is None:
                self._directory.clear_boot()
        except FAILURES as failure:
            self._faults.note(faults.classify(failure), f"{self._directory.path} could not be synced: {failure}")
        self._directory.release()

    def _open(self) -> None:
        open_for_writing(self._directory, self._environment, self._writer, "safe", self._faults)
        self._directory.drop_damaged_beyond(self._quota_bytes)

    def _put(self, documents: Sequence[Document]) -> bool:
        if free_bytes(self._directory.path) < self._free_reserve_bytes:
            self._faults.note(faults.LOW_SPACE, f"the volume of {self._directory.path} is below its free reserve")
            return False
        try:
            return self._writer.put([self._encoded(one) for one in documents])
        except lmdb.MapFullError as failure:
            self._faults.note(faults.MAP_FULL, str(failure))
            return False

    def _encoded(self, document: Document) -> EncodedDocument:
        spec = TensorSpec("uint8", (len(document.body),))
        stream = tuple(self._codec.encode(HostPayload((spec,), (memoryview(document.body),))))
        return EncodedDocument(document, stream, check_of(document.key.id, _WHOLE, stream))

    def _get(self, key: DocumentKey) -> Document | None:
        id = key.id
        found = self._containment.read(lambda: self._read(id), None)
        if found is None or self._is_expired(found[0]):
            return None
        row, stream = found
        try:
            if len(stream) != row.stream_bytes or check_of(id, _WHOLE, [memoryview(stream)]) != row.check:
                self._quarantine(id, faults.CHECKSUM, f"{self._directory.path}: a document does not verify")
                return None
            (body,) = self._codec.decode([memoryview(stream)]).buffers()
        except (CodecError, ValueError) as failure:
            self._quarantine(id, faults.DECODE, f"{self._directory.path}: {failure}")
            return None
        return Document(key, bytes(body), row.model, row.created_s)

    def _read(self, id: DocumentId) -> tuple[DocumentRow, bytes] | None:
        """The row with the whole stream, copied out; pieces that are missing are not in it."""
        trees = self._environment.trees
        with self._environment.viewing() as txn:
            value = txn.get(id, db=trees.rec)
            if value is None:
                return None
            row = DocumentRow.unpack(id, bytes(value))
            pieces = [txn.get(piece_key(row.body, piece), db=trees.dat) for piece in range(row.num_pieces)]
            return row, b"".join(piece for piece in pieces if piece is not None)

    def _quarantine(self, id: DocumentId, kind: str, message: str) -> None:
        """A miss from now on."""
        self._faults.note(kind, message)
        self._containment.write(lambda: self._writer.delete([id]), 0)

    def _delete(self, key: DocumentKey) -> bool:
        found = self._read(key.id)
        return bool(self._writer.delete([key.id])) and found is not None and not self._is_expired(found[0])

    def _erase(self, includes: Callable[[DocumentInfo], bool] | None) -> Erased:
        with self._containment.lock, self._environment.exclusive():
            try:
                before_bytes, num_documents = self._size()
                if includes is None:
                    replaced(self._directory, self._environment)
                    problem = ""
                else:
                    num_documents = self._writer.delete(self._chosen(includes))
                    problem = compacted(self._directory, self._environment)
                self._directory.drop_damaged()  # it may hold anything that ever was stored
                gone_bytes = before_bytes - self._size()[0] if num_documents else 0
                return Erased(num_documents, max(0, gone_bytes), problem)
            finally:
                self._containment.note_lost()

    def _chosen(self, includes: Callable[[DocumentInfo], bool]) -> list[DocumentId]:
        with self._environment.reading() as txn, txn.cursor(self._environment.trees.rec) as cursor:
            return [id for id, value in cursor if includes(DocumentRow.unpack(id, value).info)]

    def _size(self) -> tuple[int, int]:
        """Bytes and documents."""
        trees = self._environment.trees
        with self._environment.reading() as txn:
            return trees.used_pages(txn) * self._environment.geometry.page_bytes, txn.stat(trees.rec)["entries"]

    def _is_expired(self, row: DocumentRow) -> bool:
        limit_s = self._expires_before_s()
        return limit_s is not None and row.created_s <= limit_s

    def _expires_before_s(self) -> int | None:
        return None if self._max_age_s is None else self._clock.unix_ns() // 10**9 - self._max_age_s

    def _note_evicted(self, num_documents: int) -> None:
        self._evicted += num_documents


__all__ = ("LmdbDocumentStore",)
