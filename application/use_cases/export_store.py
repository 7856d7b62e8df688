"""Carrying records from one store to another through a file."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO

from application.ports.block_store import BlockStore
from application.ports.state_codec import CodecError, StateCodec
from application.use_cases.export_format import ExportReader, ExportWriter, InvalidExport
from application.use_cases.walk_store import chosen, walk
from domain.record import NamespaceInfo, Record

_BATCH_RECORDS = 8
_BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class TransferReport:
    """`skipped`: by reason, records that were not carried over."""

    num_namespaces: int
    num_records: int
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])


def export_store(
    store: BlockStore,
    stream: BinaryIO,
    codec: StateCodec,
    model: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> TransferReport:
    """Write the records of a model (or of all). One that cannot be read is skipped, and what hangs on it is useless:
    importing will skip that in turn."""
    writer = ExportWriter(stream, codec)
    spaces = chosen(store, model)
    num_records, skipped = 0, Counter[str]()
    for usage in spaces:
        writer.namespace(usage.info)
        keys = walk(store, usage.info.namespace)
        while batch := list(islice(keys, _BATCH_RECORDS)):
            for record in store.get(batch):
                if record is None:
                    skipped["unreadable"] += 1
                else:
                    writer.record(record)
                    num_records += 1
            progress(len(batch))
    writer.close()
    return TransferReport(len(spaces), num_records, skipped)


def import_store(
    store: BlockStore, stream: BinaryIO, codec: StateCodec, progress: Callable[[int], None] = lambda _: None
) -> TransferReport:
    """Put the records of an export. Raises InvalidExport when the file is damaged; what came before is stored."""
    reader = ExportReader(stream, codec)
    namespaces, num_records, skipped = 0, 0, Counter[str]()
    batch: list[Record] = []

    def put() -> None:
        nonlocal num_records
        stored, refused = _put_batch(store, batch)
        num_records += stored
        skipped.update(refused)
        progress(len(batch))
        batch.clear()

    while (entry := _next(reader)) is not None:
        if isinstance(entry, NamespaceInfo):
            store.open_namespace(entry)
            namespaces += 1
            continue
        batch.append(entry)
        if len(batch) >= _BATCH_RECORDS or _size(batch) >= _BATCH_BYTES:
            put()
    put()
    return TransferReport(namespaces, num_records, skipped)


def _next(reader: ExportReader) -> NamespaceInfo | Record | None:
    try:
        return reader.next()
    except CodecError as failure:
        raise InvalidExport(str(failure)) from None


def _size(records: list[Record]) -> int:
    return sum(payload.size_bytes for record in records for payload in record.groups.values())


def _put_batch(store: BlockStore, records: list[Record]) -> tuple[int, Counter[str]]:
    """As one, or one by one when one of them cannot be stored."""
    if not records or store.put(records).value == "stored":
        return len(records), Counter()
    outcomes = Counter(store.put([record]).value for record in records)
    return outcomes.pop("stored", 0), outcomes


__all__ = ("TransferReport", "export_store", "import_store")
