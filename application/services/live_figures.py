"""The counts and latencies of requests, folded from events: one source for `/admin`, `cairn status` and metrics.

What is counted here is counted nowhere else: the exporters read these counts when they collect. Latencies are the
exception. OpenTelemetry has no instrument for a histogram kept elsewhere, and the buckets that exporters ask
for are too wide for a page's percentiles, so the adapter records the same durations in the SDK's histograms.

A request's prompt counts as looked up once, whatever `n` is, and only where something could have been reused: not for
models whose cache cannot be captured, nor for requests that demand that every token be computed.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping

from application.events import (
    FirstToken,
    ModelLoaded,
    PrefillChunkComputed,
    PrefixMatched,
    RequestEnded,
    StateRestored,
    TokensReceived,
)
from application.ports.clock import Clock
from application.services.event_sinks import EventRouter
from application.services.request_timelines import RequestTimelines
from domain.health.live_figures import NUM_SLICES, SLICE_S, Counts, LiveReading, Readings, bucket_of
from domain.health.seconds_saved import Saved, restoring_by_tier, seconds_saved
from domain.ids import ModelId
from domain.models.pace import Pace
from domain.prefix.explanation import TAKES_NO_PART
from domain.request.request import Usage

MINUTE_NS = 60 * 10**9
HOUR_MINUTES = 60


class LiveFigures(EventRouter):
    """An event sink; `timelines` takes each event before it."""

    def __init__(self, clock: Clock, timelines: RequestTimelines) -> None:
        self._clock = clock
        self.timelines = timelines
        self._counts = Counts()
        self._readings = Readings[Counts](SLICE_S * 10**9, NUM_SLICES)
        self._usage: dict[ModelId, Usage] = {}
        self._paces = defaultdict[ModelId, Pace](Pace)
        self._saved = Saved()
        self._saved_by_minute = Readings[Saved](MINUTE_NS, HOUR_MINUTES)
        super().__init__(
            "live figures",
            {
                ModelLoaded: self._loaded,
                PrefixMatched: self._matched,
                PrefillChunkComputed: self._computed,
                FirstToken: self._first_token,
                TokensReceived: self._received,
                RequestEnded: self._ended,
            },
        )

    def read(self) -> LiveReading:
        """The present figures. Any thread."""
        now_ns = self._clock.now_ns()
        return LiveReading.of(self.between(lambda: self._readings.starts(now_ns, self._counts.copy())), now_ns)

    def tokens(self) -> Mapping[tuple[ModelId, str], int]:
        """Tokens since the start by model and origin. Any thread."""
        return self.between(lambda: dict(self._counts.tokens))

    def usages(self) -> Mapping[ModelId, Usage]:
        """The sums of each model's ended requests since the start, without reused tokens. Any thread."""
        return self.between(lambda: dict(self._usage))

    def saved(self) -> tuple[Saved, Saved]:
        """The time that reuse saved since the start, and in the last hour, to the minute. Any thread."""
        now_ns = self._clock.now_ns()
        starts = self.between(lambda: self._saved_by_minute.starts(now_ns, self._saved))
        return starts[-1], starts[-1].plus(starts[0], -1)

    def _ended(self, event: RequestEnded) -> None:
        timeline, usage = self.timelines.of(event.id), event.usage
        if timeline is None or timeline.ended is not event:
            return
        seen = self._usage.get(timeline.model, Usage(0, 0))
        self._usage[timeline.model] = Usage(
            seen.prompt_tokens + usage.prompt_tokens,
            seen.completion_tokens + usage.completion_tokens,
            proposed=Counter(seen.proposed) + Counter(usage.proposed),
            accepted=Counter(seen.accepted) + Counter(usage.accepted),
        )
        if timeline.matched is not None and timeline.matched.reused and not timeline.queued.choice:
            # Only now: the first request of a model has computed something, so there is a pace.
            found = seconds_saved(self._paces[timeline.model], timeline.matched.reused, _restoring(timeline.restored))
            self._saved_by_minute.before_change(event.at_ns, lambda: self._saved)
            self._saved = self._saved.plus(found)

    def _at(self, at_ns: int) -> Counts:
        """The counts, for a change at this time."""
        self._readings.before_change(at_ns, self._counts.copy)
        return self._counts

    def _loaded(self, event: ModelLoaded) -> None:
        self._paces.setdefault(event.id, Pace(event.pace))

    def _matched(self, event: PrefixMatched) -> None:
        if (timeline := self.timelines.of(event.id)) is not None and timeline.is_first_lookup(event):
            counts = self._at(event.at_ns)
            for tier, num_tokens in event.reused.items():
                counts.tokens[timeline.model, tier] += num_tokens
            if event.reason not in TAKES_NO_PART:
                counts.lookups[timeline.model] += 1
                counts.looked_up[timeline.model] += event.num_prompt

    def _computed(self, event: PrefillChunkComputed) -> None:
        if (timeline := self.timelines.of(event.id)) is not None:
            origin = "recomputed" if event.is_resumed else "computed"
            self._at(event.at_ns).tokens[timeline.model, origin] += event.end - event.start
            self._paces[timeline.model].add(event.start, event.end, (event.at_ns - event.started_ns) / 1e9)

    def _first_token(self, event: FirstToken) -> None:
        timeline = self.timelines.of(event.id)
        if timeline is not None and timeline.first_token_ns == event.at_ns:
            waited_s = (event.at_ns - timeline.queued.at_ns) / 1e9
            self._at(event.at_ns).first_token[bucket_of(waited_s)] += 1

    def _received(self, event: TokensReceived) -> None:
        counts = self._at(event.at_ns)
        for id, num_tokens in event.counts:
            if (timeline := self.timelines.of(id)) is not None:
                counts.tokens[timeline.model, "output"] += num_tokens
        for _, gap_s in self.timelines.gaps(event):
            counts.inter_token[bucket_of(gap_s)] += 1


def _restoring(event: StateRestored | None) -> Mapping[str, float]:
    if event is None:  # a state that was taken over
        return {}
    fetching_ns, copying_ns = event.fetched_ns - event.started_ns, event.at_ns - event.fetched_ns
    return restoring_by_tier(event.tier_bytes, fetching_ns / 1e9, copying_ns / 1e9)
