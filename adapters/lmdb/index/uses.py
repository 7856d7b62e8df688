"""What waits for the next write transaction: uses of records, and names of namespaces. Any thread.

A crash loses recency, and the names of namespaces without a record. Both are bounded.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock

from domain.prefix.record import Namespace, NamespaceInfo, RecordKey

_MAX_HELD_TOUCHES = 1 << 16
_MAX_NAMESPACES = 1024


class RecordUses:
    """Which records this process is reading now, and which it has used since the last write transaction."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._read: Counter[RecordKey] = Counter()
        self._touched: dict[RecordKey, None] = {}

    def touch(self, keys: Sequence[RecordKey]) -> None:
        """Note a use, the latest last; beyond a bound the oldest are forgotten."""
        with self._lock:
            for key in keys:
                self._touched.pop(key, None)
                self._touched[key] = None
            while len(self._touched) > _MAX_HELD_TOUCHES:
                del self._touched[next(iter(self._touched))]

    def take_touched(self) -> list[RecordKey]:
        """The uses noted since the last time."""
        with self._lock:
            touched, self._touched = list(self._touched), {}
        return touched

    @contextmanager
    def reading(self, keys: Sequence[RecordKey]) -> Generator[None]:
        with self._lock:
            self._read.update(keys)
        try:
            yield
        finally:
            with self._lock:
                self._read -= Counter(keys)

    def kept(self) -> Sequence[RecordKey]:
        """What must not be evicted now."""
        with self._lock:
            return list(self._read)


class AnnouncedNamespaces:
    """Model name and fingerprint of namespaces that have no record yet, and so no row; the oldest is forgotten.

    Every batch announces its namespace again, so what is forgotten costs a name in a report at most.
    """

    """Any thread."""

    def __init__(self, capacity: int = _MAX_NAMESPACES) -> None:
        self._capacity = capacity
        self._lock = Lock()
        self._infos: dict[Namespace, NamespaceInfo] = {}

    def note(self, info: NamespaceInfo) -> None:
        with self._lock:
            self._infos.pop(info.namespace, None)
            self._infos[info.namespace] = info
            while len(self._infos) > self._capacity:
                del self._infos[next(iter(self._infos))]

    def of(self, namespaces: Iterable[Namespace]) -> Mapping[Namespace, NamespaceInfo]:
        """Those of them that are known."""
        with self._lock:
            return {namespace: self._infos[namespace] for namespace in namespaces if namespace in self._infos}
