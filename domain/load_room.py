"""How much room there is for weights, and whether a model fits in it."""

from dataclasses import dataclass

from domain.memory.ledger import MemoryLimits, MemoryUse


@dataclass(frozen=True, slots=True)
class LoadRoom:
    """Bytes. `limit_bytes`: what the computing process may hold; None: nothing bounds it. `fixed_bytes`: what it holds
    whatever is loaded. `busy_bytes`: what running requests hold and still grow into; it becomes free when they end.

    What is kept to be used again (the hot tier, freed buffers) is no use: it gives way to weights.
    """

    limit_bytes: int | None = None
    fixed_bytes: int = 0
    busy_bytes: int = 0

    @classmethod
    def of(cls, limits: MemoryLimits | None, ledger: MemoryUse | None) -> "LoadRoom":
        """As the engine tells them."""
        if limits is None or ledger is None:
            return cls(None if limits is None else limits.hard_bytes)
        busy = ledger.state_bytes + ledger.flight_bytes + ledger.growth_bytes + ledger.transient_bytes
        return cls(limits.hard_bytes, ledger.other_bytes, busy)

    def available_bytes(self, weight_bytes: int) -> int | None:
        """Beside so many of weights, once no request runs. None: no bound."""
        return None if self.limit_bytes is None else max(0, self.limit_bytes - self.fixed_bytes - weight_bytes)

    def fits_now(self, weight_bytes: int) -> bool:
        """Whether so many bytes of weights in all may be held beside the requests that run."""
        return self.limit_bytes is None or self.fixed_bytes + self.busy_bytes + weight_bytes <= self.limit_bytes


__all__ = ("LoadRoom",)
