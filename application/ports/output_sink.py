"""Where the engine loop delivers what it produced."""

from collections.abc import Sequence
from typing import Protocol

from domain.ids import RequestId
from domain.stream import StreamItem


class OutputSink(Protocol):
    """Called from the compute thread, once a step; must not block or raise. Items of one request arrive in order."""

    def deliver(self, batch: Sequence[tuple[RequestId, StreamItem]]) -> None: ...


__all__ = ("OutputSink",)
