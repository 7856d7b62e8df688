"""What a client has used of its limits: requests as a token bucket, generations that run as places.

    bucket  requests_per_minute tokens; one comes back every 60 s / requests_per_minute
    places  max_concurrent; taken when generations begin, given back when their request is over

The bucket is kept as the time at which it is full again: each token is one interval of it. A request that is refused
takes nothing. Not thread-safe; times are monotonic nanoseconds.
"""

from typing import NamedTuple

from domain.client import Client
from domain.errors import InvalidRequest, LimitReached

_MINUTE_NS = 60_000_000_000
_BUSY_RETRY_S = 1
"""Nobody knows when a generation ends."""


class Allowance(NamedTuple):
    """Of requests: at most, left now, and how long until all of them are back."""

    limit: int
    remaining: int
    reset_ns: int


class ClientMeter:
    """`client` is replaced when its key is read again; what was used stays used."""

    __slots__ = ("_full_at_ns", "_num_running", "client")

    def __init__(self, client: Client) -> None:
        self.client = client
        self._full_at_ns = 0
        self._num_running = 0

    def charge(self, num_requests: int, now_ns: int, *, num_paid: int = 0) -> None:
        """Take so many tokens, less those taken for the same request already. Raises LimitReached, or InvalidRequest
        for more than the bucket ever holds."""
        limit = self.client.requests_per_minute
        if limit is None or num_requests <= num_paid:
            return
        if num_requests > limit:
            raise InvalidRequest(f"the key '{self.client.name}' may ask for {limit} generations a minute, all together")
        interval_ns = _MINUTE_NS // limit
        full_at_ns = max(self._full_at_ns, now_ns) + (num_requests - num_paid) * interval_ns
        if (wait_ns := full_at_ns - now_ns - limit * interval_ns) > 0:
            wait_s = -(-(wait_ns + num_paid * interval_ns) // 1_000_000_000)  # asking again is paid for again
            raise LimitReached(
                f"the key '{self.client.name}' has used its {limit} requests a minute; try again in {wait_s}s",
                retry_after_s=wait_s,
            )
        self._full_at_ns = full_at_ns

    def enter(self, num_generations: int) -> None:
        """Take so many places, until `leave`. Raises as `charge` does."""
        limit = self.client.max_concurrent
        if limit is not None and num_generations > limit:
            raise InvalidRequest(f"the key '{self.client.name}' may have {limit} generations running at once")
        if limit is not None and num_generations and self._num_running + num_generations > limit:
            raise LimitReached(
                f"the key '{self.client.name}' has {self._num_running} generations running, of {limit} that it may;"
                f" try again in {_BUSY_RETRY_S}s",
                retry_after_s=_BUSY_RETRY_S,
            )
        self._num_running += num_generations

    def leave(self, num_generations: int) -> None:
        self._num_running -= num_generations

    def allowance(self, now_ns: int) -> Allowance | None:
        """None for a client without a limit of requests."""
        limit = self.client.requests_per_minute
        if limit is None:
            return None
        interval_ns = _MINUTE_NS // limit
        used_ns = max(0, self._full_at_ns - now_ns)
        return Allowance(limit, max(0, (limit * interval_ns - used_ns) // interval_ns), used_ns)


__all__ = ("Allowance", "ClientMeter")
