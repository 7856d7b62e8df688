"""What happened lately, in slices of equal length: as much is kept of it as there are slices, whatever comes.

    kept:   [newest - num_slices + 1 .. newest]      a slice is the whole number `at_ns // slice_ns`

Times are of one monotonic clock. They may arrive a little out of order; what is older than every slice that is kept is
forgotten.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimeSlices(Generic[T]):
    """`make` gives an empty slice. Not thread-safe."""

    def __init__(self, slice_ns: int, num_slices: int, make: Callable[[], T]) -> None:
        self.slice_ns = slice_ns
        self.num_slices = num_slices
        self._make = make
        self._slices: dict[int, T] = {}
        self._newest = -1

    def at(self, at_ns: int) -> T:
        """The slice for what happens at `at_ns`. For what is too old, one that nobody will see."""
        number = at_ns // self.slice_ns
        if number > self._newest:
            self._newest = number
            for old in [kept for kept in self._slices if kept <= number - self.num_slices]:
                del self._slices[old]
        elif number <= self._newest - self.num_slices:
            return self._make()
        found = self._slices.get(number)
        if found is None:
            found = self._slices[number] = self._make()
        return found

    def last(self, num: int, now_ns: int) -> list[T | None]:
        """The slices up to the one of `now_ns`, oldest first; None where nothing happened."""
        end = now_ns // self.slice_ns + 1
        return [self._slices.get(number) for number in range(end - min(num, self.num_slices), end)]

    def __len__(self) -> int:
        """How many slices are kept; for leak checks."""
        return len(self._slices)


__all__ = ("TimeSlices",)
