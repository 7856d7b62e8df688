"""Carrying records from one store to another through a file."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO

from application.ports.block_store import BlockStore
from application.ports.state_codec import StateCodec
from application.use_cases.export_format import ExportReader, ExportWriter
from application.use_cases.export_seal import ExportKey, InvalidExport
from application.use_cases.walk_store import chosen, walk
from domain.fingerprint import namespace_of
from domain.ids import BlockHash
from domain.namespace_choice import EVERYTHING, NamespaceChoice
from domain.record import BlockKey, NamespaceInfo, Record

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
    writer: ExportWriter,
    choice: NamespaceChoice = EVERYTHING,
    progress: Callable[[int], None] = lambda _: None,
) -> TransferReport:
    """Write the records of these namespaces. One that cannot be read is skipped as `unreadable`, what hangs on it as
    `orphan`, and what was stored without its fingerprint, so that no importer could check it, as `unnamed`."""
    spaces = chosen(store, choice)
    named = [usage.info for usage in spaces if namespace_of(usage.info.fingerprint) == usage.info.namespace]
    num_records, skipped = 0, Counter[str]()
    for usage in spaces:
        if usage.info not in named:
            skipped["unnamed"] += usage.num_blocks + usage.num_snapshots
    for info in named:
        writer.namespace(info)
        written = {BlockHash(info.namespace)}
        keys = walk(store, info.namespace)
        while batch := list(islice(keys, _BATCH_RECORDS)):
            for record in store.get(batch):
                if record is None or record.parent not in written:
                    skipped["unreadable" if record is None else "orphan"] += 1
                    continue
                writer.record(record)
                num_records += 1
                if isinstance(record.key, BlockKey):
                    written.add(record.key.hash)
            progress(len(batch))
    writer.close()
    return TransferReport(len(named), num_records, skipped)


def import_store(
    store: BlockStore,
    stream: BinaryIO,
    codec: StateCodec,
    key: ExportKey | None = None,
    *,
    trusts_anyone: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> TransferReport:
    """Put the records of an export, `_BATCH_RECORDS` at a time, each batch once all of it was found right.

    `key`: it must be signed with that, unless `trusts_anyone`. Raises InvalidExport: nothing of that batch is stored,
    what came before is.
    """
    reader = ExportReader(stream, codec, key, trusts_anyone=trusts_anyone)
    namespaces, num_records, skipped = 0, 0, Counter[str]()
    batch: list[Record] = []

    def put() -> None:
        nonlocal num_records
        stored, refused = _put_batch(store, batch)
        num_records += stored
        skipped.update(refused)
        progress(len(batch))
        batch.clear()

    try:
        while (entry := reader.next()) is not None:
            if isinstance(entry, NamespaceInfo):
                store.open_namespace(entry)
                namespaces += 1
                continue
            batch.append(entry)
            if len(batch) >= _BATCH_RECORDS or _size(batch) >= _BATCH_BYTES:
                put()
    except InvalidExport as failure:
        raise InvalidExport(f"{failure}; {num_records} records before it were stored") from None
    put()
    return TransferReport(namespaces, num_records, skipped)


def _size(records: list[Record]) -> int:
    return sum(payload.size_bytes for record in records for payload in record.groups.values())


def _put_batch(store: BlockStore, records: list[Record]) -> tuple[int, Counter[str]]:
    """As one, or one by one when one of them cannot be stored."""
    if not records or store.put(records).value == "stored":
        return len(records), Counter()
    outcomes = Counter(store.put([record]).value for record in records)
    return outcomes.pop("stored", 0), outcomes


__all__ = ("TransferReport", "export_store", "import_store")
