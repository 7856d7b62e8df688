"""Figures of the last minutes, folded from events into `domain/health/live_figures`, and of drafts since the start.

A request's prompt counts as looked up once, whatever `n` is, and only where something could have been reused: not for
models whose cache cannot be captured, nor for requests that demand that every token be computed.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from application.events import FirstToken, PrefillChunkComputed, PrefixMatched, RequestEnded, TokensReceived
from application.ports.clock import Clock
from application.services.event_sinks import EventRouter
from application.services.request_timelines import RequestTimelines
from domain.health.live_figures import LiveReading, LiveWindows
from domain.ids import ModelId
from domain.prefix.explanation import TAKES_NO_PART


@dataclass(frozen=True, slots=True)
class DraftTotals:
    """The draft tokens of a model's ended requests since the start, by Drafter value, and their output tokens."""

    num_output: int = 0
    proposed: Counter[str] = field(default_factory=Counter[str])
    accepted: Counter[str] = field(default_factory=Counter[str])

    @property
    def tokens_per_step(self) -> float | None:
        """The mean of output tokens that a decode step gives a sequence; None before the first."""
        num_steps = self.num_output - self.accepted.total()
        return self.num_output / num_steps if num_steps > 0 else None


class LiveFigures(EventRouter):
    """An event sink; `timelines` takes each event before it."""

    def __init__(self, clock: Clock, timelines: RequestTimelines) -> None:
        self._clock = clock
        self._timelines = timelines
        self._windows = LiveWindows()
        self._drafts: dict[ModelId, DraftTotals] = {}
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

    def drafts(self, model: ModelId) -> DraftTotals:
        """The draft tokens of a model. Any thread."""
        return self.between(lambda: self._drafts.get(model, DraftTotals()))

    def _ended(self, event: RequestEnded) -> None:
        timeline, usage = self._timelines.of(event.id), event.usage
        if timeline is None or timeline.ended is not event:
            return
        seen = self._drafts.get(timeline.model, DraftTotals())
        self._drafts[timeline.model] = replace(
            seen,
            num_output=seen.num_output + usage.completion_tokens,
            proposed=seen.proposed + Counter(usage.proposed),
            accepted=seen.accepted + Counter(usage.accepted),
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
