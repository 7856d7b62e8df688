"""Limits of one connection before its client is known: bytes, time, and a slot among the connections of the server.

Sizes are generous for OpenAI's clients and far below harmful ones.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from domain.host_name import address_of, network_of
from interfaces.http.errors import Problem

MAX_HEADER_BYTES = 32 * 2**10
"""Limit of the headers together, with their separators."""

MAX_HEADERS = 100
MAX_TARGET_BYTES = 8 * 2**10
"""Limit of a path with its query."""

MIN_BYTES_S = 1024
"""A body that arrives, or an answer that is taken, slowly gets a second more for each MIN_BYTES_S bytes, and no more
than its timeout at once."""

MAX_DISCARDED_BYTES = 16 * 2**20
"""Limit of the input after its request was answered or refused. It is read and discarded, since a connection that is
closed at once may lose the answer on its way to the client."""

LINGER_S = 2.0
"""Time for which input is read and discarded after a refusal."""

RESERVED_CONNECTIONS = 16
"""The number of connections beyond the limit, reserved for health checks of a full server."""

STALL_S = 1.0
"""A timer later than this means that the event loop stood still, and that input was not read in the meantime."""

HEADERS_TOO_LARGE = Problem(431, "headers_too_large", "the request's headers are too large or too many")
TARGET_TOO_LONG = Problem(414, "target_too_long", "the request's path is too long")
MALFORMED = Problem(400, "invalid_request", "the input is not a valid HTTP request")
PIPELINED = Problem(400, "pipelined", "a request was sent before the one before it was answered; send it again")
TOO_SLOW = Problem(408, "request_timeout", "the request did not arrive in time")
TOO_LARGE = Problem(413, "body_too_large", "the body continues after it was refused")
NOT_READ = Problem(408, "write_timeout", "the client did not take its answer in time")
FULL = Problem(503, "too_many_connections", "too many connections are open", headers={"Retry-After": "1"})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds: until the headers are complete; for a body, and for the client to take what is sent to it (both
    extended by MIN_BYTES_S)."""

    max_connections: int = 512
    header_timeout_s: float = 15.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 120.0


def more_time_s(num_bytes: int, most_s: float) -> float:
    """Returns the extension in seconds for `num_bytes` since the last deadline. A fast start allows no long silence."""
    return min(num_bytes / MIN_BYTES_S, most_s)


class RequestPart(Enum):
    """The part of a request that the input is in. BETWEEN: every request that has begun is complete."""

    BETWEEN = "between"
    HEAD = "head"
    BODY = "body"


class Deadline:
    """One timer of a connection, on the event loop. `expired` is called once for each time it was armed, unless it was
    cancelled or armed anew before. When the event loop stood still it gets another second: input that would have met
    the deadline may not have been read yet."""

    __slots__ = ("_due_s", "_expired", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired: Callable[[], None] | None = expired
        self._handle: asyncio.TimerHandle | None = None
        self._due_s = 0.0

    @property
    def is_armed(self) -> bool:
        return self._handle is not None

    def arm(self, timeout_s: float) -> None:
        """Starts the timer, again if it is armed."""
        self.cancel()
        self._due_s = self._loop.time() + timeout_s
        self._handle = self._loop.call_later(timeout_s, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def end(self) -> None:
        """Cancels for good and releases `expired`, so that its owner is freed without the collector."""
        self.cancel()
        self._expired = None

    def _fire(self) -> None:
        self._handle = None
        if self._loop.time() - self._due_s > STALL_S:
            self.arm(STALL_S)
        elif self._expired is not None:
            self._expired()


class SlotHolder(Protocol):
    """A connection in ConnectionSlots. `address`: its client's; None on loopback, where all clients have the same."""

    address: str | None

    def evict(self) -> None:
        """Closes to free the slot for another connection; no complete request of this one waits for an answer."""
        ...


class Slot(Enum):
    """The requests that a new connection may send: all, health checks, or none."""

    ALL_REQUESTS = "all requests"
    HEALTH_ONLY = "health only"
    NONE = "none"


class ConnectionSlots:
    """The slots of all connections of a server. Event loop only.

    A connection waits for its client from when it opens, and from the end of each answer, until a whole request has
    arrived. When the server is full, or one address has half of all slots, the connection that has waited longest
    is closed for the new one. Without one that waits, the new one is refused.
    """

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._share = max(1, max_connections // 2)
        self._num_of: dict[str, int] = {}
        self._open: set[SlotHolder] = set()
        self._waiting: dict[SlotHolder, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, one: SlotHolder) -> Slot:
        """Returns the slot of a new connection. `leave` releases the slot."""
        if one.address is not None and self._num_of.get(one.address, 0) >= self._share:
            is_made = self._evict_one(one.address)
        else:
            is_made = len(self._open) < self._max or self._evict_one(None)
        if not is_made and len(self._open) >= self._max + RESERVED_CONNECTIONS:
            return Slot.NONE
        self._open.add(one)
        self._waiting[one] = None
        if one.address is not None:
            self._num_of[one.address] = self._num_of.get(one.address, 0) + 1
        return Slot.ALL_REQUESTS if is_made else Slot.HEALTH_ONLY

    def request_arrived(self, one: SlotHolder) -> None:
        """A whole request has arrived and is being answered."""
        self._waiting.pop(one, None)

    def request_answered(self, one: SlotHolder) -> None:
        if one in self._open and one not in self._waiting:
            self._waiting[one] = None

    def leave(self, one: SlotHolder) -> None:
        """Releases the slot. Idempotent; also for a connection that never had a slot."""
        if one not in self._open:
            return
        self._open.discard(one)
        self._waiting.pop(one, None)
        if one.address is not None:
            self._num_of[one.address] -= 1
            if not self._num_of[one.address]:
                del self._num_of[one.address]

    def _evict_one(self, address: str | None) -> bool:
        """Closes the connection that has waited longest, of this address if given. Returns whether there was one."""
        longest = next((one for one in self._waiting if address is None or one.address == address), None)
        if longest is None:
            return False
        self.leave(longest)
        longest.evict()
        return True


def shared_address(host: str | None) -> str | None:
    """Returns the network by which connections are counted; None on loopback and for sockets without an address."""
    if host is None:
        return None
    network = network_of(host)
    address = address_of(network)
    return None if address is not None and address.is_loopback else network
