"""The wish of a server to get no more requests, which /health/ready reports to the routers before it.

Requests that still arrive are answered: between that report and a router's next health check it sends more.
"""


class Draining:
    """Event loop only. `is_on`: routers should choose another server."""

    def __init__(self) -> None:
        self.is_on = False
        self._is_final = False

    def begin(self, *, is_final: bool = False) -> None:
        """`is_final`: the server stops afterwards, so that `end` has no effect any more."""
        self.is_on = True
        self._is_final = self._is_final or is_final

    def end(self) -> None:
        """Takes requests from routers again, unless the server stops."""
        self.is_on = self._is_final
