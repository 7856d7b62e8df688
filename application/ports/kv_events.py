"""KV events: what this server publishes to other programs, above all routers, of the blocks from which it can resume.

Contract
* A feed is read by one thread, the publisher's: each of its methods does part of the work and returns.
* A publisher numbers the batches that it sends. A subscriber that lost some asks for them again and gets the present
  state, so nothing is kept for it, and it is never waited for.
"""

from collections.abc import Sequence
from typing import Protocol

from domain.prefix.published_blocks import BlockEvent


class KvEventFeed(Protocol):
    """The source of the events."""

    @property
    def is_behind(self) -> bool:
        """True while more has changed than `changes` has returned."""
        ...

    def changes(self) -> Sequence[BlockEvent]:
        """Returns the next events, from a bounded number of changes."""
        ...

    def state(self) -> Sequence[BlockEvent]:
        """Returns events that lead to the same as all that `changes` has returned."""
        ...


class KvEventPublisher(Protocol):
    """It sends a feed to whoever subscribes, from `start` until `close`, on a thread of its own."""

    def start(self, feed: KvEventFeed) -> None: ...

    def close(self) -> None: ...
