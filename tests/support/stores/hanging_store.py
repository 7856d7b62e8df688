"""A store on a volume that hangs: chosen operations wait until the test lets them go on."""

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import BlockStore, PreparedPut
from domain.prefix.record import Record
from tests.support.patience import PATIENCE_S

READS = ("keys", "followers", "get", "usage")


class HangingStore:
    """A BlockStore that hands every call on, but holds those that hang. `entered`: how often each was called."""

    def __init__(self, store: BlockStore | None = None) -> None:
        self._store = store or MemoryBlockStore()
        self._changed = threading.Condition()
        self._hanging: set[str] = set()
        self.entered: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)

        def call(*arguments: Any, **named: Any) -> Any:
            with self._changed:
                self.entered[name] += 1
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: name not in self._hanging, PATIENCE_S), f"{name} hung for ever"
            return operation(*arguments, **named)

        return call

    def prepare(self, records: Sequence[Record]) -> PreparedPut:
        """What hangs is to put."""
        return partial(self.put, records)

    def hang(self, operations: Sequence[str] = READS) -> None:
        with self._changed:
            self._hanging.update(operations)
            self.entered.clear()

    def recover(self) -> None:
        """What hangs goes on."""
        with self._changed:
            self._hanging.clear()
            self._changed.notify_all()

    def wait_until_entered(self, operation: str, count: int = 1) -> None:
        with self._changed:
            reached = self._changed.wait_for(lambda: self.entered[operation] >= count, PATIENCE_S)
            assert reached, f"{operation} was not called {count} times"


__all__ = ("PATIENCE_S", "READS", "HangingStore")
