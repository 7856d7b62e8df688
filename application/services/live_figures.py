"""The last minutes in figures, folded from events: `domain/live_windows` fed as requests go through their stages.

A request's prompt counts as looked up once, whatever `n` is, and only where something could have been reused: not of
models whose cache cannot be captured, nor of requests that want every token computed. Of an open choice is kept when it
last gave a token; past `max_open` of them the oldest is dropped, which only happens if ends get lost.
"""

from collections import OrderedDict
from dataclasses import dataclass

from application.events import (
    DecodeStarted,
    FirstToken,
    PrefillChunkComputed,
    PrefixMatched,
    RequestAdmitted,
    RequestEnded,
    RequestQueued,
)
from application.ports.clock import Clock
from application.services.event_router import EventRouter
from application.services.request_timelines import MAX_OPEN, RequestTimelines
from application.token_events import TokensReceived
from domain.explanation import TAKES_NO_PART
from domain.ids import RequestId
from domain.live_reading import LiveReading
from domain.live_windows import LiveWindows


@dataclass(slots=True)
class _Choice:
    """`last_ns`: when its last token came."""

    last_ns: int | None = None


class LiveFigures(EventRouter):
    """See the module docstring."""

    def __init__(self, clock: Clock, max_open: int = MAX_OPEN) -> None:
        self._clock = clock
        self._max_open = max_open
        self._windows = LiveWindows()
        self._timelines = RequestTimelines(max_open)
        self._open: OrderedDict[RequestId, _Choice] = OrderedDict()
        super().__init__(
            "live figures",
            {
                RequestQueued: self._queued,
                RequestAdmitted: self._timelines.admitted,
                DecodeStarted: self._timelines.decode_started,
                PrefixMatched: self._matched,
                PrefillChunkComputed: self._computed,
                FirstToken: self._first_token,
                TokensReceived: self._received,
                RequestEnded: self._ended,
            },
        )

    @property
    def num_open(self) -> int:
        """For leak checks."""
        return len(self._open)

    def read(self) -> LiveReading:
        """Any thread."""
        return self.between(lambda: self._windows.read(self._clock.now_ns()))

    def _queued(self, event: RequestQueued) -> None:
        self._timelines.queued(event)
        self._open.pop(event.id, None)
        self._open[event.id] = _Choice()
        if len(self._open) > self._max_open:
            self._open.popitem(last=False)

    def _matched(self, event: PrefixMatched) -> None:
        if self._timelines.matched(event) is not None:
            takes_part = event.reason not in TAKES_NO_PART
            self._windows.add_lookup(event.reused, event.num_prompt, event.at_ns, takes_part=takes_part)

    def _computed(self, event: PrefillChunkComputed) -> None:
        origin = "recomputed" if event.is_resumed else "computed"
        self._windows.add_tokens(origin, event.end - event.start, event.at_ns)

    def _first_token(self, event: FirstToken) -> None:
        timeline = self._timelines.first_token(event)
        if timeline is not None and (seconds := timeline.time_to_first_token_s) is not None:
            self._windows.add_first_token(seconds, event.at_ns)

    def _received(self, event: TokensReceived) -> None:
        for id, num_tokens in event.counts:
            self._windows.add_tokens("output", num_tokens, event.at_ns)
            if (choice := self._open.get(id)) is not None:
                if choice.last_ns is not None:
                    self._windows.add_gap((event.at_ns - choice.last_ns) / 1e9, num_tokens, event.at_ns)
                choice.last_ns = event.at_ns

    def _ended(self, event: RequestEnded) -> None:
        self._timelines.ended(event)
        self._open.pop(event.id, None)


__all__ = ("LiveFigures",)
