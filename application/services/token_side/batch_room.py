"""What is left of the batch and of memory once a step is planned, for the choices that are forked in it."""

from dataclasses import dataclass


@dataclass(slots=True)
class BatchRoom:
    """`num_bytes` None: any number."""

    num_places: int
    num_bytes: int | None

    def takes(self, charge_bytes: int) -> bool:
        """Take a place and so many bytes; False when there is no place, or not so many."""
        if self.num_places <= 0 or (self.num_bytes is not None and charge_bytes > self.num_bytes):
            return False
        self.num_places -= 1
        self.num_bytes = None if self.num_bytes is None else self.num_bytes - charge_bytes
        return True


__all__ = ("BatchRoom",)
