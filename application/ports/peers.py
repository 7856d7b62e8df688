"""The port to the other servers of a fleet."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PeerState:
    """A server, as it answers without a key. `is_ready`: None without an answer. `problem`: why it is not ready, or did
    not answer. `version`, and `reuse`: the share of prompt tokens of the last quarter of an hour that were reused, 0 to
    1; None where they need a key. Counts are of requests."""

    url: str
    is_ready: bool | None = None
    problem: str = ""
    num_waiting: int | None = None
    num_running: int | None = None
    version: str | None = None
    reuse: float | None = None


class ReadPeer(Protocol):
    async def __call__(self, url: str) -> PeerState:
        """Asks a server for its state; within seconds, and without raising."""
        ...
