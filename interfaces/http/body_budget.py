"""What the bodies of all requests together may take of memory: many of an allowed size are too much as well.

A body is counted as it arrives, not as it is announced, so that nobody takes room with a header; and until its request
is answered, because the application keeps what it has read that long. What does not fit is refused, never waited for:
bodies that are each half there would wait for one another.
"""

from collections import deque

from domain.byte_size import format_bytes
from interfaces.http.errors import Problem


class BodyBudget:
    """Of one server. Event loop only."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.full = Problem(
            503,
            "bodies_full",
            f"the requests that are being answered already hold bodies of {format_bytes(max_bytes)}; try again later",
            headers={"Retry-After": "1"},
        )


class HeldBodies:
    """What one connection holds of the budget, by request in order of arrival."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._held: deque[int] = deque()

    def begin(self) -> None:
        """A request whose body, if it has one, comes next."""
        self._held.append(0)

    def add(self, num_bytes: int) -> Problem | None:
        """Of the latest request's body. The problem that ends the connection, if there is no room for them."""
        if self._budget.held_bytes + num_bytes > self._budget.max_bytes:
            return self._budget.full
        self._budget.held_bytes += num_bytes
        self._held[-1] += num_bytes
        return None

    def end(self) -> None:
        """The oldest request was answered; nothing, where the connection was gone before."""
        if self._held:
            self._budget.held_bytes -= self._held.popleft()

    def end_all(self) -> None:
        """The connection is gone. Idempotent."""
        while self._held:
            self.end()


__all__ = ("BodyBudget", "HeldBodies")
