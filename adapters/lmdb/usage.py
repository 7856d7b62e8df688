"""What is stored and what it takes, from one snapshot of the namespaces' sums."""

from adapters.lmdb.environment import Environment
from adapters.lmdb.rows import NamespaceRow
from application.ports.block_store import NamespaceUsage, StoreUsage


def read_usage(environment: Environment, quota_bytes: int | None) -> StoreUsage:
    """`quota_bytes` None: what the writer set. Evictions and faults are left at none. Raises as reading does."""
    with environment.reading() as txn:
        rows = [(key, NamespaceRow.unpack(key, value)) for key, value in txn.cursor(environment.trees.ns)]
        used = environment.trees.used_pages(txn) * environment.geometry.page_bytes
    namespaces = tuple(
        NamespaceUsage(
            info=row.info(key),
            num_blocks=row.num_blocks,
            num_snapshots=row.num_snapshots,
            raw_bytes=row.raw_bytes,
            stored_bytes=row.stored_bytes,
        )
        for key, row in rows
        if not row.is_empty
    )
    return StoreUsage(
        quota_bytes=quota_bytes if quota_bytes is not None else environment.info()[1],
        stored_bytes=used,
        namespaces=namespaces,
    )


__all__ = ("read_usage",)
