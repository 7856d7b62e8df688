"""The metrics of `catalogue`, fed from events through a meter.

`FEEDS` gives for each type of event the points that it adds, `READ` the points that are read when metrics are
collected: what `/admin` shows too is counted by LiveFigures and read from there. Other counters and gauges are kept
here and read by the exporters, `GET /metrics` among them; histograms are kept by the SDK.

Names that clients invent never become attribute values: a refused request counts under the model it named only if that
model has been served here. Computed prompt tokens are counted as they are computed, so that a cancelled prefill counts
for what it cost, and reused ones when they are restored, for the first choice only; output tokens when a choice ends.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from opentelemetry.context import Context
from opentelemetry.metrics import Histogram, Meter, Observation

from adapters.otel import catalogue
from adapters.otel import semconv as names
from adapters.otel.catalogue import CATALOGUE, Metric, MetricKind
from adapters.otel.kv_blocks import KVBlocks
from adapters.otel.point import NONE, Attributes, Point, Total
from adapters.otel.span_attributes import encodable
from adapters.otel.telemetry import NO_ROUTERS, RouterFigures
from application import events as on
from application.services.event_sinks import EventRouter, Handler
from application.services.live_figures import LiveFigures
from application.services.request_timelines import RequestTimeline, Stage
from domain.ids import ModelId, RequestId
from domain.prefix.explanation import TAKES_NO_PART, TIER_NAMES, StopReason
from domain.request.request import Usage

MAX_KNOWN_MODELS = 1_024
MAX_KNOWN_TOOLS = 1_024

_NO_TRACE = Context()

TraceLookup: TypeAlias = Callable[[RequestId], Context | None]
"""The context of an open request's span; None where there is none, or it is not sampled. Any thread."""


def no_trace(_id: RequestId) -> Context | None:
    """The trace lookup of a server that traces nothing."""
    return None


class View:
    """The state that feeds read besides their event. Not thread-safe: events and readings are serialised."""

    def __init__(self, figures: LiveFigures, routers: RouterFigures) -> None:
        self.figures = figures
        self.kv = KVBlocks(routers)
        self._shown = (routers.default_model,) if routers.default_model else ()
        self.timelines = figures.timelines
        self.known_models: set[ModelId] = set()
        self._known_tools: set[tuple[str, str]] = set()

    def tool(self, server: str, name: str) -> str:
        """The tool's name as an attribute; `_OTHER` for those of servers that never stop to invent some."""
        if len(self._known_tools) < MAX_KNOWN_TOOLS:
            self._known_tools.add((server, name))
        return encodable(name) if (server, name) in self._known_tools else "_OTHER"

    def note_models(self, *models: ModelId) -> None:
        """Models whose names may become attributes from now on."""
        if len(self.known_models) < MAX_KNOWN_MODELS:
            self.known_models.update(models)

    def num_open(self, *stages: Stage) -> Mapping[str, int]:
        """Open requests in these stages by model, including zeros."""
        totals: dict[str, int] = dict.fromkeys(self._shown, 0)
        for (model, stage), count in self.timelines.num_in_stage().items():
            totals[model] = totals.get(model, 0) + (count if stage in stages else 0)
        return totals


def _queued(event: on.RequestQueued, view: View) -> Iterable[Point]:
    view.note_models(event.model, event.requested_model)
    return ()


def _admitted(event: on.RequestAdmitted, view: View) -> Iterator[Point]:
    one = view.timelines.of(event.id)
    if one is not None and one.admitted_ns == event.at_ns:
        yield Point(catalogue.QUEUE_TIME, one.time_in_s(Stage.WAITING, event.at_ns), _model(one.model))


def _matched(event: on.PrefixMatched, view: View) -> Iterator[Point]:
    one = view.timelines.of(event.id)
    if one is not None and one.is_first_lookup(event):
        if event.reason in TAKES_NO_PART:
            result = "off"
        elif event.reason == StopReason.LAST_TOKEN.value:
            result = "full"
        else:
            result = "partial" if any(event.reused.values()) else "none"
        found = {names.CAIRN_RESULT: result, names.CAIRN_STOP_REASON: event.reason}
        yield Point(catalogue.PREFIX_LOOKUPS, 1, found)


def _preempted(event: on.RequestPreempted, view: View) -> Iterator[Point]:
    if (one := view.timelines.of(event.id)) is not None:
        yield Point(catalogue.REQUESTS_PREEMPTED, 1, _model(one.model))


def _decode_started(event: on.DecodeStarted, view: View) -> Iterator[Point]:
    one = view.timelines.of(event.id)
    if one is not None and one.decode_started_ns == event.at_ns:
        yield Point(catalogue.PREFILL_TIME, one.time_in_s(Stage.PREFILLING, event.at_ns), _model(one.model))


def _first_token(event: on.FirstToken, view: View) -> Iterator[Point]:
    one = view.timelines.of(event.id)
    if one is not None and one.first_token_ns == event.at_ns:
        yield Point(catalogue.TIME_TO_FIRST_TOKEN, one.time_to_first_token_s, _request(one))


def _received(event: on.TokensReceived, view: View) -> Iterator[Point]:
    for model, gap_s in view.timelines.gaps(event):
        yield Point(catalogue.INTER_TOKEN_LATENCY, gap_s, _model(model))


def _ended(event: on.RequestEnded, view: View) -> Iterator[Point]:
    if (parsing := event.parsing) is not None:
        parser = {names.CAIRN_PARSER: parsing.family or names.PARSER_PLAIN}
        yield Point(catalogue.PARSER_FAILURES, int(parsing.has_failed), parser)
        for kind in parsing.problems:
            yield Point(catalogue.TOOL_CALL_PROBLEMS, 1, {names.CAIRN_KIND: kind})
    one = view.timelines.of(event.id)
    if one is None or one.ended is not event:
        return
    model, request, usage = _model(one.model), _request(one), event.usage
    if event.parsing is not None and event.parsing.repeated_tokens:
        yield Point(catalogue.REPETITIONS, 1, model)
    error = {} if event.error_code is None else {names.ERROR_TYPE: event.error_code}
    yield Point(catalogue.REQUEST_DURATION, (event.at_ns - one.queued.at_ns) / 1e9, {**request, **error})
    yield Point(catalogue.DECODE_TIME, one.time_in_s(Stage.DECODING, event.at_ns), model)
    if not error:
        per_token_s = one.time_per_output_token_s(event.at_ns, usage.completion_tokens)
        yield Point(catalogue.TIME_PER_OUTPUT_TOKEN, per_token_s, request)
    yield Point(catalogue.REQUESTS_ENDED, 1, {**model, names.CAIRN_REASON: event.reason, **error})


def _images_matched(event: on.ImagesMatched, view: View) -> Iterator[Point]:
    one = view.timelines.of(event.id)
    if one is not None and one.images is event and not one.queued.choice:
        yield Point(catalogue.IMAGE_TOKENS, event.num_reused, _origin(one, "reused"))
        yield Point(catalogue.IMAGE_TOKENS, event.num_tokens - event.num_reused, _origin(one, "computed"))


def _refused(event: on.RequestRefused, view: View) -> Iterator[Point]:
    model = event.model if event.model in view.known_models else "_OTHER"
    attributes = {names.GEN_AI_REQUEST_MODEL: model, names.ERROR_TYPE: event.error_code}
    yield Point(catalogue.REQUESTS_REFUSED, 1, attributes)


def _loaded(event: on.ModelLoaded, view: View) -> Iterable[Point]:
    view.note_models(event.id)
    view.kv.loaded(event)
    return ()


def _unloaded(event: on.ModelUnloaded, view: View) -> Iterable[Point]:
    view.kv.unloaded(event)
    return ()


def _cache_measured(event: on.CacheMeasured, _: View) -> Iterator[Point]:
    """A tier that could not be read has no point. Tiers in memory count their evictions and only ever make room; the
    store says why, in events."""
    yield Point(catalogue.STORE_LAG, event.lag_s)
    yield Point(catalogue.SHARED_AVAILABLE, event.shared_available)
    tiers = {tier.name: tier for tier in event.tiers}
    for name in TIER_NAMES:
        tier, attributes = tiers.get(name), {names.CAIRN_TIER: name}
        yield Point(catalogue.CACHE_USED, None if tier is None else tier.used_bytes, attributes)
        yield Point(catalogue.CACHE_LIMIT, None if tier is None else tier.limit_bytes, attributes)
        if tier is not None and name != "store":
            yield Point(catalogue.CACHE_EVICTED, Total(tier.evicted), {**attributes, names.CAIRN_REASON: "room"})


def _shared(event: on.SharedStoreUsed, _: View) -> Iterator[Point]:
    attributes = {names.CAIRN_OPERATION: event.operation, names.CAIRN_OUTCOME: event.outcome}
    yield Point(catalogue.SHARED_TIME, (event.at_ns - event.started_ns) / 1e9, attributes)
    yield Point(catalogue.SHARED_RECORDS, event.num_records, attributes)


def _tool_called(event: on.ToolCalled, view: View) -> Iterator[Point]:
    error = {} if event.error_code is None else {names.ERROR_TYPE: event.error_code}
    tool = {names.CAIRN_TOOL_SERVER: event.server, names.GEN_AI_TOOL_NAME: view.tool(event.server, event.tool)}
    yield Point(catalogue.TOOL_TIME, (event.at_ns - event.started_ns) / 1e9, {**tool, **error})


def _persisted(event: on.RecordsPersisted, _: View) -> Iterator[Point]:
    yield Point(catalogue.STORE_RECORDS, event.num_records, {names.CAIRN_OUTCOME: "persisted"})
    if event.offered_ns:
        yield Point(catalogue.STORE_WRITE_LAG, (event.at_ns - event.offered_ns) / 1e9)


def _memory_measured(event: on.MemoryMeasured, view: View) -> Iterator[Point]:
    view.kv.measured(event)
    yield Point(catalogue.MEMORY_LEVEL, event.level)
    for name in ("weight", "state", "live", "hot", "queued", "flight", "other", "growth", "transient", "reading"):
        yield Point(catalogue.MEMORY_USED, getattr(event.ledger, f"{name}_bytes"), {names.CAIRN_PURPOSE: name})
    for name in ("total", "low", "high", "hard"):
        limit = getattr(event.ledger.limits, f"{name}_bytes", None)
        yield Point(catalogue.MEMORY_LIMIT, limit, {names.CAIRN_MARK: name})


def _one(metric: Metric, attributes: Callable[[Any], Attributes] = lambda _: {}) -> "Feed":
    """One more, with the attributes of the event."""
    return lambda event, _view: [Point(metric, 1, attributes(event))]


def _duration(metric: Metric) -> "Feed":
    """The seconds that the event took."""
    return lambda event, _view: [Point(metric, (event.at_ns - event.started_ns) / 1e9)]


Feed: TypeAlias = Callable[[Any, View], Iterable[Point]]

FEEDS: Mapping[type, Feed] = {
    on.RequestQueued: _queued,
    on.RequestAdmitted: _admitted,
    on.PrefixMatched: _matched,
    on.RequestPreempted: _preempted,
    on.DecodeStarted: _decode_started,
    on.FirstToken: _first_token,
    on.TokensReceived: _received,
    on.RequestEnded: _ended,
    on.ImagesMatched: _images_matched,
    on.RequestRefused: _refused,
    on.HttpRefused: _one(catalogue.HTTP_REFUSED, lambda event: {names.CAIRN_REASON: event.reason}),
    on.StepCompleted: _duration(catalogue.STEP_DURATION),
    on.ModelLoaded: _loaded,
    on.ModelUnloaded: _unloaded,
    on.FaultObserved: _one(catalogue.FAULTS, lambda event: {names.CAIRN_WHERE: event.where}),
    on.StoreFault: _one(catalogue.FAULTS, lambda event: {names.CAIRN_WHERE: f"store.{event.kind}"}),
    on.ReadinessMeasured: lambda event, _: [Point(catalogue.READY, int(event.is_ready))],
    on.EngineStuck: lambda event, _: [Point(catalogue.ENGINE_STUCK, int(event.is_first))],
    on.EngineRecovered: lambda _event, _: [Point(catalogue.ENGINE_STUCK, -1)],
    on.EngineRestarted: _one(catalogue.ENGINE_RESTARTS),
    on.StateRestored: _duration(catalogue.RESTORE_TIME),
    on.CacheMeasured: _cache_measured,
    on.RecordsPersisted: _persisted,
    on.RecordsDropped: lambda event, _: [
        Point(
            *(catalogue.STORE_RECORDS, event.num_records),
            {names.CAIRN_OUTCOME: "dropped", names.CAIRN_REASON: event.reason},
        )
    ],
    on.RecordsEvicted: lambda event, _: [
        Point(catalogue.CACHE_EVICTED, event.num_records, {names.CAIRN_TIER: "store", names.CAIRN_REASON: event.reason})
    ],
    on.SharedStoreUsed: _shared,
    on.KvEventsSent: lambda event, _: [
        Point(catalogue.KV_EVENT_BATCHES, 1, {names.CAIRN_OUTCOME: event.outcome}),
        Point(catalogue.KV_EVENT_SUBSCRIBERS, event.num_subscribers),
    ],
    on.ToolCalled: _tool_called,
    on.MemoryMeasured: _memory_measured,
    on.PressureRelieved: _one(catalogue.MEMORY_ACTIONS, lambda event: {names.CAIRN_KIND: event.kind}),
}


def _named(attribute: str, values: Mapping[str, float]) -> Iterable[tuple[float, Attributes]]:
    return [(value, {attribute: name}) for name, value in values.items()]


def _prompt_tokens(view: View) -> Iterator[tuple[float, Attributes]]:
    for (model, origin), num_tokens in view.figures.tokens().items():
        if origin != "output":
            yield num_tokens, {**_model(model), names.CAIRN_ORIGIN: origin}


def _drafted(view: View, counts: Callable[[Usage], Mapping[str, int]]) -> Iterator[tuple[float, Attributes]]:
    for model, usage in view.figures.usages().items():
        for drafter, num_tokens in counts(usage).items():
            yield num_tokens, {**_model(model), names.CAIRN_DRAFTER: drafter}


READ: Mapping[Metric, Callable[[View], Iterable[tuple[float, Attributes]]]] = {
    catalogue.REQUESTS_WAITING: lambda view: _named(names.GEN_AI_RESPONSE_MODEL, view.num_open(Stage.WAITING)),
    catalogue.REQUESTS_RUNNING: lambda view: _named(
        names.GEN_AI_RESPONSE_MODEL, view.num_open(Stage.PREFILLING, Stage.DECODING)
    ),
    catalogue.KV_USAGE: lambda view: [(view.kv.usage, NONE)],
    catalogue.KV_BLOCK_SIZE: lambda view: [(view.kv.block_size, NONE)],
    catalogue.KV_BLOCKS: lambda view: _named(names.GEN_AI_RESPONSE_MODEL, view.kv.num_blocks()),
    catalogue.REQUESTS_WAITING_FOR: lambda view: _named(names.CAIRN_REASON, view.timelines.num_waiting_for()),
    catalogue.TIME_SAVED: lambda view: _named(names.CAIRN_TIER, view.figures.saved()[0].seconds),
    catalogue.UNPRICED_TOKENS: lambda view: [(view.figures.saved()[0].num_unpriced, NONE)],
    catalogue.PROMPT_TOKENS: _prompt_tokens,
    catalogue.OUTPUT_TOKENS: lambda view: [
        (usage.completion_tokens, _model(model)) for model, usage in view.figures.usages().items()
    ],
    catalogue.PROPOSED_TOKENS: lambda view: _drafted(view, lambda usage: usage.proposed),
    catalogue.ACCEPTED_TOKENS: lambda view: _drafted(view, lambda usage: usage.accepted),
}


class MetricEvents(EventRouter):
    """An event sink; the timelines of `figures` take each event before it. `other_failures`: events that other sinks
    failed on, by type, which are counted with its own. `trace_of`: a request's trace, which becomes the exemplar of its
    latencies."""

    def __init__(
        self,
        meter: Meter,
        figures: LiveFigures,
        other_failures: Callable[[], Mapping[str, int]] = dict,
        trace_of: TraceLookup = no_trace,
        routers: RouterFigures = NO_ROUTERS,
    ) -> None:
        super().__init__("metrics", {kind: self._recording(feed) for kind, feed in FEEDS.items()})
        self.view = View(figures, routers)
        self._trace_of = trace_of
        self._other_failures = other_failures
        self._histograms: dict[Metric, Histogram] = {}
        self._values: dict[Metric, dict[frozenset[tuple[str, str]], float]] = {}
        for metric in CATALOGUE:
            self._add(meter, metric)

    def _add(self, meter: Meter, metric: Metric) -> None:
        common = metric.unit, metric.description
        if metric.kind is MetricKind.HISTOGRAM:
            self._histograms[metric] = meter.create_histogram(
                metric.name, *common, explicit_bucket_boundaries_advisory=metric.buckets
            )
            return
        create = {
            MetricKind.COUNTER: meter.create_observable_counter,
            MetricKind.UP_DOWN: meter.create_observable_up_down_counter,
            MetricKind.GAUGE: meter.create_observable_gauge,
        }[metric.kind]
        starts_at_0 = metric.kind is not MetricKind.COUNTER and not metric.attributes
        self._values[metric] = {frozenset(): 0} if starts_at_0 else {}
        create(metric.name, [lambda _options: self._observed(metric)], *common)

    def _recording(self, feed: Feed) -> Handler:
        def record(event: Any) -> None:
            for point in feed(event, self.view):
                self._record(point, getattr(event, "id", None))

        return record

    def _record(self, point: Point, id: RequestId | None) -> None:
        metric, value, attributes = point
        if metric.kind is MetricKind.HISTOGRAM:
            if isinstance(value, int | float):
                trace = None if id is None else self._trace_of(id)
                self._histograms[metric].record(max(value, 0.0), attributes, trace or _NO_TRACE)
            return
        values, key = self._values[metric], frozenset(attributes.items())
        if value is None:
            values.pop(key, None)
        elif isinstance(value, Total):
            values[key] = value.number
        elif metric.kind is MetricKind.GAUGE:
            values[key] = value
        elif value:
            values[key] = values.get(key, 0) + value

    def _observed(self, metric: Metric) -> list[Observation]:
        """The points of a counter or gauge; called by the thread that collects."""
        if metric is catalogue.TELEMETRY_FAILURES:
            failures = self.failures(), self.view.figures.failures(), self._other_failures()
            found = _named(names.CAIRN_EVENT, sum(map(Counter[str], failures), Counter[str]()))
        elif metric in READ:
            found = READ[metric](self.view)
        else:
            found = self.between(lambda: [(value, dict(key)) for key, value in self._values[metric].items()])
        return [Observation(value, attributes) for value, attributes in found]


def _model(model: ModelId) -> dict[str, str]:
    return {names.GEN_AI_RESPONSE_MODEL: model}


def _origin(timeline: RequestTimeline, origin: str) -> dict[str, str]:
    return {**_model(timeline.model), names.CAIRN_ORIGIN: origin}


def _request(timeline: RequestTimeline) -> dict[str, str]:
    return {
        names.GEN_AI_OPERATION_NAME: timeline.queued.kind.value,
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER_CAIRN,
        names.GEN_AI_REQUEST_MODEL: timeline.queued.requested_model,
        **_model(timeline.model),
    }
