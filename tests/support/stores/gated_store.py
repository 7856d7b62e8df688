"""A store whose writes wait until the test lets them go on, before anything is stored or after everything is."""

from collections.abc import Sequence
from threading import Event

from adapters.memory.block_store import MemoryBlockStore
from application.ports.block_store import PutOutcome
from domain.prefix.record import Record
from tests.support.patience import PATIENCE_S


class GatedStore(MemoryBlockStore):
    """`entered`: a write has begun. `gate`: it may store. `stored`: it has. `exit`: it may return (open at first).

    `batches`: records of each write, in order. `defect`: raised instead of storing, against the contract.
    """

    def __init__(self, quota_bytes: int | None = None) -> None:
        super().__init__(quota_bytes)
        self.entered, self.gate, self.stored, self.exit = Event(), Event(), Event(), Event()
        self.exit.set()
        self.batches: list[int] = []
        self.defect: Exception | None = None

    def put(self, records: Sequence[Record]) -> PutOutcome:
        self.entered.set()
        assert self.gate.wait(PATIENCE_S)
        self.batches.append(len(records))
        if self.defect is not None:
            raise self.defect
        outcome = super().put(records)
        self.stored.set()
        assert self.exit.wait(PATIENCE_S)
        return outcome

    def open(self) -> None:
        """Let everything through from now on."""
        self.gate.set()
        self.exit.set()
