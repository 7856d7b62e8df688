"""The sleep assertion of a Mac that computes: its user may be away while an agent works.

The assertion is held while any choice is in the queue or in the engine, and released with the last one: the system
itself waits for minutes of idleness before it sleeps, so that pauses between requests need no timer here. The kernel
releases it when the process ends.
"""

from adapters.system.mac import MacCalls, attempt
from application.events import RequestEnded, RequestQueued
from application.services.event_sinks import EventRouter
from domain.ids import RequestId


class SleepGuard(EventRouter):
    """An EventSink that holds at most one assertion."""

    def __init__(self, calls: MacCalls | None = None) -> None:
        super().__init__("the sleep assertion", {RequestQueued: self._queued, RequestEnded: self._ended})
        self._calls = calls or MacCalls()
        self._open: set[RequestId] = set()
        self._assertion: int | None = None

    def _queued(self, event: RequestQueued) -> None:
        self._open.add(event.id)
        if len(self._open) == 1 and self._assertion is None:
            self._assertion = attempt(
                lambda: self._calls.stay_awake("Cairn computes requests"), "keep the machine awake"
            )

    def _ended(self, event: RequestEnded) -> None:
        self._open.discard(event.id)
        if not self._open and (held := self._assertion) is not None:
            self._assertion = None
            attempt(lambda: self._calls.may_sleep(held), "let the machine sleep again")
