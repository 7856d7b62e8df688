"""Exports taken apart and put together again with seals that hold: what somebody would write who knows the format."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from struct import pack, unpack_from
from typing import Any

from adapters.export.format import MAGIC, ExportReader, ExportWriter
from adapters.export.seal import KEY_ID_BYTES, SEAL_BYTES, UNSIGNED, ExportKey, Seals
from adapters.memory.block_store import MemoryBlockStore
from adapters.zstd.codec import ZstdStateCodec
from application.ports.block_store import BlockStore
from application.ports.record_writer import PutOutcome
from application.use_cases.export_store import TransferReport, export_store, import_store
from domain.record import Record
from tests.support.store_records import chain, namespace_of, snapshot

ONE, TWO = namespace_of("org/one"), namespace_of("org/two")
KEY = ExportKey(b"k" * 32)


@dataclass
class Entry:
    """`text` wins over `header` where it is set. `sizes`: what the header said of the frames when it was read."""

    header: dict[str, Any]
    body: bytes = b""
    text: bytes | None = None

    @property
    def bytes(self) -> list[bytes]:
        text = self.text if self.text is not None else json.dumps(self.header, separators=(",", ":")).encode()
        return [pack("<I", len(text)), text, self.body]


def content() -> list[Record]:
    """Two models; branches, a snapshot inside the first block, one behind a block, and one at its very end."""
    one, two = chain(ONE, 3, size_bytes=300), chain(TWO, 2, size_bytes=100)
    branch = chain(ONE, 1, seed=3, size_bytes=50, after=one[1])
    return [*one, *branch, snapshot(branch[-1], [1, 2], 40), snapshot(ONE, [4], 40), snapshot(one[0], [], 40), *two]


def filled_store(records: Sequence[Record] | None = None) -> MemoryBlockStore:
    store = MemoryBlockStore()
    store.open_namespace(ONE)
    store.open_namespace(TWO)
    assert store.put(content() if records is None else records) is PutOutcome.STORED
    return store


def export_bytes(store: BlockStore | None = None, key: ExportKey | None = None) -> bytes:
    stream = BytesIO()
    writer = ExportWriter(stream, ZstdStateCodec(), ZstdStateCodec(compress=False), key)
    export_store(store or filled_store(), writer)
    return stream.getvalue()


def import_bytes(
    store: BlockStore, data: bytes, key: ExportKey | None = None, *, trust: bool = False
) -> TransferReport:
    return import_store(store, ExportReader(BytesIO(data), ZstdStateCodec(), key, trusts_anyone=trust))


def entries_of(data: bytes) -> list[Entry]:
    """Of an unsigned export."""
    at, found = len(MAGIC) + KEY_ID_BYTES, list[Entry]()
    while length := unpack_from("<I", data, at)[0]:
        header = json.loads(data[at + 4 : at + 4 + length])
        at += 4 + length
        size = sum(row[1] for row in header.get("groups", []))
        found.append(Entry(header, data[at : at + size]))
        at += size + SEAL_BYTES
    return found


def sealed(
    entries: Sequence[Entry], key: ExportKey | None = None, count: int | None = None, signer: bytes | None = None
) -> bytes:
    """`signer`: the key id to claim, whatever the key."""
    beginning = MAGIC + (signer if signer is not None else key.id if key is not None else UNSIGNED)
    seals, parts = Seals(beginning, key), [beginning]
    end = [pack("<I", 0), pack("<Q", len(entries) if count is None else count)]
    for piece in (*(entry.bytes for entry in entries), end):
        parts += [*piece, *seals.next(piece)]
    return b"".join(parts)


__all__ = (
    "KEY",
    "ONE",
    "TWO",
    "Entry",
    "content",
    "entries_of",
    "export_bytes",
    "filled_store",
    "import_bytes",
    "sealed",
)
