"""Carrying records from one store to another: walk and write, read and put."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from application.ports.block_store import Advance, BlockStore, nobody_looks
from application.ports.record_transfer import InvalidExport, RecordSink, RecordSource
from application.ports.record_writer import PutOutcome, RecordWriter
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
    sink: RecordSink,
    choice: NamespaceChoice = EVERYTHING,
    advance: Advance = nobody_looks,
) -> TransferReport:
    """Write the records of these namespaces. One that cannot be read is skipped as `unreadable`, what follows it as
    `orphan`, and what was stored without its fingerprint, so that no importer could check it, as `unnamed`. `advance`:
    told of the raw bytes."""
    spaces = chosen(store, choice)
    named = [usage.info for usage in spaces if namespace_of(usage.info.fingerprint) == usage.info.namespace]
    num_records, skipped = 0, Counter[str]()
    for usage in spaces:
        if usage.info not in named:
            skipped["unnamed"] += usage.num_blocks + usage.num_snapshots
    for info in named:
        sink.namespace(info)
        written = {BlockHash(info.namespace)}
        keys = walk(store, info.namespace)
        while batch := list(islice(keys, _BATCH_RECORDS)):
            for record in store.get(batch):
                if record is None or record.parent not in written:
                    skipped["unreadable" if record is None else "orphan"] += 1
                    continue
                sink.record(record)
                num_records += 1
                advance(record.raw_bytes)
                if isinstance(record.key, BlockKey):
                    written.add(record.key.hash)
    sink.close()
    return TransferReport(len(named), num_records, skipped)


def import_store(store: RecordWriter, source: RecordSource) -> TransferReport:
    """Put the records of an export, `_BATCH_RECORDS` at a time, each batch once all of it was found right.

    Raises InvalidExport: nothing of that batch is stored, what came before is.
    """
    namespaces, num_records, skipped = 0, 0, Counter[str]()
    batch: list[Record] = []

    def put() -> None:
        nonlocal num_records
        stored, refused = _put_batch(store, batch)
        num_records += stored
        skipped.update(refused)
        batch.clear()

    try:
        while (entry := source.next()) is not None:
            if isinstance(entry, NamespaceInfo):
                store.open_namespace(entry)
                namespaces += 1
                continue
            batch.append(entry)
            if len(batch) >= _BATCH_RECORDS or sum(record.raw_bytes for record in batch) >= _BATCH_BYTES:
                put()
    except InvalidExport as failure:
        raise InvalidExport(f"{failure}; {num_records} records before it were stored") from None
    put()
    return TransferReport(namespaces, num_records, skipped)


def _put_batch(store: RecordWriter, records: list[Record]) -> tuple[int, Counter[str]]:
    """As one, or one by one when one of them cannot be stored."""
    if not records or store.put(records) is PutOutcome.STORED:
        return len(records), Counter()
    outcomes = Counter(store.put([record]).value for record in records)
    return outcomes.pop(PutOutcome.STORED.value, 0), outcomes


__all__ = ("TransferReport", "export_store", "import_store")
