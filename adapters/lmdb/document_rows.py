"""The values of a document store's index, byte by byte (docs/store-format.md). Each ends in a check that covers its
key.

A database of documents has the trees of a block store: `sys` (the counters), `rec` (a row a document, by its id), `lru`
(ids in the order of puts) and `dat` (bodies in pieces); `ns` and `kid` stay empty.
"""

from dataclasses import dataclass
from struct import Struct, error

from adapters.lmdb.faults import Damaged
from adapters.lmdb.recognition import StoreKind
from adapters.lmdb.rows import opened, sealed
from domain.document import DocumentId, DocumentInfo

STATE_KEY = b"documents"
_STATE = Struct("<QQ")
_ROW = Struct("<QQQQQIHH")


@dataclass(slots=True)
class DocumentState:
    """`next_id`: of bodies. `clock` counts puts. Neither is given twice."""

    next_id: int = 1
    clock: int = 1

    def pack(self) -> bytes:
        return sealed(STATE_KEY, _STATE.pack(self.next_id, self.clock))

    @classmethod
    def unpack(cls, value: bytes) -> "DocumentState":
        try:
            return cls(*_STATE.unpack(opened(STATE_KEY, value)))
        except error:
            raise Damaged("the state of the document store has another size") from None


@dataclass(frozen=True, slots=True)
class DocumentRow:
    """Where a body lies. `check`: of its stream, with the id."""

    body: int
    clock: int
    created_s: int
    stream_bytes: int
    check: int
    num_pieces: int
    tenant: str
    model: str

    @property
    def info(self) -> DocumentInfo:
        return DocumentInfo(self.tenant, self.model, self.created_s)

    def pack(self, id: DocumentId) -> bytes:
        tenant, model = self.tenant.encode(), self.model.encode()
        numbers = (self.body, self.clock, self.created_s, self.stream_bytes, self.check, self.num_pieces)
        return sealed(id, _ROW.pack(*numbers, len(tenant), len(model)) + tenant + model)

    @classmethod
    def unpack(cls, id: DocumentId, value: bytes) -> "DocumentRow":
        body = opened(id, value)
        try:
            at, clock, created_s, stream_bytes, check, num_pieces, tenant, model = _ROW.unpack_from(body)
            text = body[_ROW.size :]
            names = text[:tenant].decode(), text[tenant : tenant + model].decode()
        except (error, UnicodeDecodeError):
            raise Damaged("a document's entry cannot be read") from None
        return cls(at, clock, created_s, stream_bytes, check, num_pieces, *names)


DOCUMENTS = StoreKind(b"cairn document store", STATE_KEY, DocumentState.unpack)

__all__ = ("DOCUMENTS", "STATE_KEY", "DocumentRow", "DocumentState")
