"""Removing for good: deleting a record only frees its pages, and what is in them stays until they are used again.

Everything goes with the database file, which is replaced by a new one; a part of it goes by deleting, writing what
stays to a new file and zeroing the gaps that LMDB copies along. The old file is unlinked and not overwritten: where a
disk puts an overwritten byte is its own affair. Readers of other processes keep it until they open the store again.
"""

from collections.abc import Sequence

from adapters.lmdb.compaction import compact
from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.environment import Environment
from adapters.lmdb.gaps import zero_gaps
from adapters.lmdb.writer import Writer
from application.ports.block_store import EraseReport, NamespaceUsage, StoreOpenError


def erase(
    directory: StoreDirectory,
    environment: Environment,
    writer: Writer,
    gone: Sequence[NamespaceUsage],
    *,
    is_everything: bool,
) -> EraseReport:
    """`gone`: what is to go. The caller keeps others from repairing and compacting. Raises what LMDB raises."""
    num_bytes = sum(space.stored_bytes for space in gone)
    if is_everything:
        num_records = sum(space.num_blocks + space.num_snapshots for space in gone)
        replaced(directory, environment)
        writer.forget_names()
        problem = ""
    else:
        num_records = sum(writer.delete_namespace(space.info.namespace) for space in gone)
        problem = compacted(directory, environment)
    # It may hold anything that ever was stored.
    directory.drop_damaged()
    return EraseReport(num_records, num_bytes, problem)


def replaced(directory: StoreDirectory, environment: Environment) -> None:
    """Everything goes. Raises what LMDB raises."""
    with environment.exclusive():
        environment.close()
        try:
            directory.empty()
        finally:
            environment.open()


def compacted(directory: StoreDirectory, environment: Environment) -> str:
    """What was deleted goes from the file as well. Returns why something may be left; empty when nothing is."""
    with environment.exclusive():
        try:
            compact(directory, environment)
        except StoreOpenError as failure:
            return f"the records are gone, but what they were may be left in free pages of the file: {failure}"
        zero_gaps(directory.data, environment.geometry.page_bytes)
    return ""


__all__ = ("compacted", "erase", "replaced")
