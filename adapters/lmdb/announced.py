"""What people are shown of a namespace, between its announcement and its first record. Bounded; oldest goes first.

One is announced again with each batch, and what is stored of it lies in its row: forgetting costs a name at most.
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
