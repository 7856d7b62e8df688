"""A store of documents: few, small, read and written whole.

Contract
* Threading: every method is safe from any thread and blocks its caller for its own I/O: never call it on an event loop.
* Atomicity: one `put` is one transaction, also after kill -9. A document that is present already is replaced, and is
  the youngest again.
* Sharing: two processes may have one store open, as in a rolling restart; each finds what the other has put.
* Quota: usage never exceeds it. The oldest documents are evicted first; a `put` never evicts its own documents.
* Files: a fleeting document is never written to one.
* Age: a document older than the maximum age is a miss from that moment, and goes with one of the next puts.
* Clearing: a document whose request began before an `erase` that covers it is not stored after it, by any process.
* Trouble (full disk, vanished volume, corruption) is contained: reads answer None, writes False unless memory can take
  them, and each kind of fault is reported once by name and counted in `usage().faults`. A document that fails its
  checksum is removed.
* Deleting makes a document unreadable at once; only `erase` promises that its bytes are gone.
* After `close`: reads answer None, writes False; nothing raises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from domain.prefix.fingerprint import EVERYTHING, NamespaceFilter
from domain.request.document import Document, DocumentKey


@dataclass(frozen=True, slots=True)
class DocumentUsage:
    """The usage of a store. `stored_bytes` count against the quota; `evicted`, `faults` (by kind): since opening."""

    quota_bytes: int
    stored_bytes: int
    num_documents: int
    evicted: int = 0
    faults: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Erased:
    """The removed documents. `problem`: the reason why bytes may be left in the files; empty when none are."""

    num_documents: int
    num_bytes: int
    problem: str = ""


class DocumentStore(Protocol):
    """See the module docstring for the contract that holds for every method."""

    def put(self, documents: Sequence[Document]) -> bool:
        """Stores all or none, except those that a clear covers; False when they cannot be stored. `is_fleeting` of one
        holds for all."""
        ...

    def get(self, keys: Sequence[DocumentKey]) -> Sequence[Document | None]:
        """Returns documents in the order of `keys`, None for a miss."""
        ...

    def delete(self, keys: Sequence[DocumentKey]) -> int:
        """Removes documents; returns the number that were present."""
        ...

    def erase(self, choice: NamespaceFilter = EVERYTHING) -> Erased:
        """Removes the documents of a model, of a tenant, or all, for good: no file of the store holds any of them
        afterwards. The digits of a namespace choose no document."""
        ...

    def usage(self) -> DocumentUsage: ...

    def close(self) -> None:
        """Closes the store. Repeating it does nothing."""
        ...
