"""Figures of the last minutes, folded from events into `domain/health/live_figures`, and of drafts since the start.

A request's prompt counts as looked up once, whatever `n` is, and only where something could have been reused: not for
models whose cache cannot be captured, nor for requests that demand that every token be computed.
"""

from collections import Counter

from application.events import FirstToken, PrefillChunkComputed, PrefixMatched, RequestEnded, TokensReceived
from application.ports.clock import Clock
from application.services.event_sinks import EventRouter
from application.services.request_timelines import RequestTimelines
from domain.health.live_figures import LiveReading, LiveWindows
from domain.ids import ModelId
from domain.prefix.explanation import TAKES_NO_PART
from domain.request.request import Usage


class LiveFigures(EventRouter):
    """An event sink; `timelines` takes each event before it."""

    def __init__(self, clock: Clock, timelines: RequestTimelines) -> None:
        self._clock = clock
        self._timelines = timelines
        self._windows = LiveWindows()
        self._usage: dict[ModelId, Usage] = {}
        super().__init__(
            "live figures",
            {
                PrefixMatched: self._matched,
                PrefillChunkComputed: self._computed,
                FirstToken: self._first_token,
                TokensReceived: self._received,
                RequestEnded: self._ended,
            },
        )

    def read(self) -> LiveReading:
        """The present figures. Any thread."""
        return self.between(lambda: self._windows.read(self._clock.now_ns()))

    def usage(self, model: ModelId) -> Usage:
        """The sums of a model's ended requests since the start, without reused tokens. Any thread."""
        return self.between(lambda: self._usage.get(model, Usage(0, 0)))

    def _ended(self, event: RequestEnded) -> None:
        timeline, usage = self._timelines.of(event.id), event.usage
        if timeline is None or timeline.ended is not event:
            return
        seen = self._usage.get(timeline.model, Usage(0, 0))
        self._usage[timeline.model] = Usage(
            seen.prompt_tokens + usage.prompt_tokens,
            seen.completion_tokens + usage.completion_tokens,
            proposed=Counter(seen.proposed) + Counter(usage.proposed),
            accepted=Counter(seen.accepted) + Counter(usage.accepted),
        )

    def _matched(self, event: PrefixMatched) -> None:
        if (timeline := self._timelines.of(event.id)) is not None and timeline.is_first_lookup(event):
            takes_part = event.reason not in TAKES_NO_PART
            self._windows.add_lookup(event.reused, event.num_prompt, event.at_ns, takes_part=takes_part)

    def _computed(self, event: PrefillChunkComputed) -> None:
        origin = "recomputed" if event.is_resumed else "computed"
        self._windows.add_tokens(origin, event.end - event.start, event.at_ns)

    def _first_token(self, event: FirstToken) -> None:
        timeline = self._timelines.of(event.id)
        if timeline is not None and timeline.first_token_ns == event.at_ns:
            self._windows.add_first_token((event.at_ns - timeline.queued.at_ns) / 1e9, event.at_ns)

    def _received(self, event: TokensReceived) -> None:
        for id, num_tokens in event.counts:
            self._windows.add_tokens("output", num_tokens, event.at_ns)
            timeline = self._timelines.of(id)
            if timeline is not None and timeline.last_tokens_ns == event.at_ns and timeline.gap_ns is not None:
                self._windows.add_gap(timeline.gap_ns / 1e9, num_tokens, event.at_ns)
