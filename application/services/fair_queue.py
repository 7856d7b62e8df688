"""A queue that several owners share: they take turns by the cost of their work, and each one's short work goes first.

Start-time fair queuing (Goyal, Vin and Chen, 1996): an owner's next item starts where its last one ended, in units of
cost, and the item with the earliest start is taken. Among the items of one owner the one with the smallest *due* is
taken, the cost that its owner had been served when the item arrived plus the item's own: short items pass a long one
until they add up to its cost.

    owner a    ├── 5 ──┼── 5 ──┼── 5 ──┤        taken: a(0), b(0), b(1), b(2), b(3), b(4), a(5), ...
    owner b    ├1┼1┼1┼1┼1┼1┤
    cost       0           5          10

Not thread-safe. `pop` and `push` take the time of a heap, and `pop` a look at each waiting owner.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Owner(Generic[T]):
    """The share of one owner. `start`: of its next item. `served`: the cost of all that was taken. `waiting`: a heap of
    due, number, cost and item."""

    start: float
    served: float = 0
    waiting: list[tuple[float, int, float, T]] = field(default_factory=list[tuple[float, int, float, T]])


class FairQueue(Generic[T]):
    """An owner is forgotten when nothing of it waits and the others have been served as much."""

    def __init__(self) -> None:
        self._owners: dict[str, _Owner[T]] = {}
        self._now: float = 0
        self._num_waiting = 0
        self._numbers = count()

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, item: T, owner: str = "", cost: float = 1) -> None:
        """`cost`: more than 0, in any unit that all items share."""
        found = self._owners.setdefault(owner, _Owner(self._now))
        found.start = max(found.start, self._now)
        heappush(found.waiting, (found.served + cost, next(self._numbers), cost, item))
        self._num_waiting += 1

    def pop(self) -> T:
        """Raises IndexError when it is empty."""
        if not self._num_waiting:
            raise IndexError("the queue is empty")
        owner = min((owner for owner in self._owners.values() if owner.waiting), key=lambda owner: owner.start)
        _, _, cost, item = heappop(owner.waiting)
        self._num_waiting -= 1
        self._now = owner.start
        owner.start += cost
        owner.served += cost
        for name in [name for name, one in self._owners.items() if not one.waiting and one.start <= self._now]:
            del self._owners[name]
        if not self._num_waiting:  # no other item waited meanwhile
            self._owners.clear()
        return item
