"""Model name and fingerprint of namespaces that have no record yet, and so no row. Bounded; the oldest is forgotten.

Every batch announces its namespace again, so what is forgotten costs a name in a report at most.
"""

from collections.abc import Iterable, Mapping
from threading import Lock

from domain.record import Namespace, NamespaceInfo

_MAX_NAMESPACES = 1024


class AnnouncedNamespaces:
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


__all__ = ("AnnouncedNamespaces",)
