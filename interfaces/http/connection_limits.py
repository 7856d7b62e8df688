"""What one connection may take before anybody knows who is at its other end: bytes, time, and a place.

Sizes are generous for what OpenAI's clients send and far below what hurts; the times and the number of connections are
settings, since they depend on the network in front of a server.
"""

from dataclasses import dataclass

from application.settings import ServerSettings
from interfaces.http.errors import Problem

MAX_HEADER_BYTES = 32 * 2**10
"""Of all headers together, trailers included. Also the most that may arrive without anything becoming of it."""

MAX_HEADERS = 100
MAX_TARGET_BYTES = 8 * 2**10
"""Of a path with its query."""

MIN_BODY_BYTES_S = 1024
"""A body that comes slowly gets a second more for each so many bytes, and no more than its timeout at once."""

MAX_DISCARDED_BYTES = 16 * 2**20
"""Of what goes on after it was answered or refused: read and thrown away, since closing at once would take the answer
from the client."""

LINGER_S = 2.0
"""How long that may take after a refusal."""

RESERVED_CONNECTIONS = 16
"""Beyond the limit, for health checks: a server that is full is not dead."""

STALL_S = 1.0
"""A timer later than this means that the event loop stood still, and what a client sent meanwhile was not read yet."""

HEADERS_TOO_LARGE = Problem(431, "headers_too_large", "the request's headers are too large or too many")
TARGET_TOO_LONG = Problem(414, "target_too_long", "the request's path is too long")
MALFORMED = Problem(400, "invalid_request", "this is not an HTTP request that can be understood")
TOO_SLOW = Problem(408, "request_timeout", "the request did not arrive in time")
TOO_LARGE = Problem(413, "body_too_large", "the body goes on after it was refused")
NOT_READ = Problem(408, "write_timeout", "the client did not take its answer in time")
FULL = Problem(503, "too_many_connections", "too many connections are open", headers={"Retry-After": "1"})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds: until the headers are complete, for a body (see MIN_BODY_BYTES_S), without any progress in what
    a client takes of its answer."""

    max_connections: int
    header_timeout_s: float
    body_timeout_s: float
    write_timeout_s: float


def connection_limits(settings: ServerSettings) -> ConnectionLimits:
    return ConnectionLimits(
        settings.max_connections, settings.header_timeout_s, settings.body_timeout_s, settings.write_timeout_s
    )


__all__ = (
    "FULL",
    "HEADERS_TOO_LARGE",
    "LINGER_S",
    "MALFORMED",
    "MAX_DISCARDED_BYTES",
    "MAX_HEADERS",
    "MAX_HEADER_BYTES",
    "MAX_TARGET_BYTES",
    "MIN_BODY_BYTES_S",
    "NOT_READ",
    "RESERVED_CONNECTIONS",
    "STALL_S",
    "TARGET_TOO_LONG",
    "TOO_LARGE",
    "TOO_SLOW",
    "ConnectionLimits",
    "connection_limits",
)
