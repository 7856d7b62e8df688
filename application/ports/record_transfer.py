"""Records on their way out of a store or into one, in a form that outlives both. One thread.

Whatever the form: namespaces come before their records, and records after those they follow.
"""

from typing import Protocol

from domain.record import NamespaceInfo, Record


class InvalidExport(Exception):
    """It is no export, was cut off or changed, or is not to be trusted; the message says where and why."""


class RecordSink(Protocol):
    """Takes what is exported. What goes wrong where it is written to is an OSError."""

    def namespace(self, info: NamespaceInfo) -> None:
        """The records of this namespace follow."""
        ...

    def record(self, record: Record) -> None: ...

    def close(self) -> None:
        """It is complete."""
        ...


class RecordSource(Protocol):
    """Gives what is imported, each entry once it was found right."""

    def next(self) -> NamespaceInfo | Record | None:
        """The next entry, or None at the end. Raises InvalidExport."""
        ...


__all__ = ("InvalidExport", "RecordSink", "RecordSource")
