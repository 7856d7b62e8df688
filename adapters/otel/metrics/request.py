"""Metrics of requests: how many, how long, how many tokens.

Names a client invents never become attribute values: a refused request counts under the model it named only if that
model has been served here. Computed prompt tokens are counted as they are computed, so a cancelled prefill counts for
what it cost; output tokens, and those its first choice reused, when it ends.
"""

from collections.abc import Iterable, Mapping

from adapters.otel import semconv as names
from adapters.otel.metrics import request_catalogue as catalogue
from adapters.otel.metrics.instruments import Attributes, Instruments
from adapters.otel.metrics.metric_spec import MetricSpec
from adapters.otel.spans.span_attributes import operation_name
from adapters.otel.trace_lookup import TraceLookup
from application.events import (
    DecodeStarted,
    FirstToken,
    ModelLoaded,
    PrefillChunkComputed,
    PrefixMatched,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestQueued,
    RequestRefused,
    StepCompleted,
    TokensReceived,
)
from application.ports.clock import Clock
from application.services.event_router import Handler
from application.services.request_timelines import RequestTimeline, RequestTimelines, Stage
from domain.ids import ModelId
from domain.prefix.explanation import TAKES_NO_PART, TIER_NAMES, StopReason

MAX_KNOWN_MODELS = 1_024


class RequestMetrics:
    """One caller at a time."""

    def __init__(
        self, instruments: Instruments, clock: Clock, timelines: RequestTimelines, trace_of: TraceLookup
    ) -> None:
        self._instruments = instruments
        self._clock = clock
        self._trace_of = trace_of
        self._last_step_ns = 0
        self._timelines = timelines
        self._known_models: set[ModelId] = set()
        instruments.observe(catalogue.REQUESTS_WAITING, lambda: self._num_open(Stage.WAITING))
        instruments.observe(catalogue.REQUESTS_WAITING_FOR, self._num_waiting_for)
        instruments.observe(catalogue.REQUESTS_RUNNING, lambda: self._num_open(Stage.PREFILLING, Stage.DECODING))
        instruments.observe(catalogue.ENGINE_STEP_AGE, lambda: [(self._step_age_s(), {})])

    def handlers(self) -> Mapping[type, Handler]:
        return {
            RequestQueued: self._queued,
            RequestAdmitted: self._admitted,
            PrefixMatched: self._matched,
            PrefillChunkComputed: self._computed,
            DecodeStarted: self._decode_started,
            FirstToken: self._first_token,
            RequestEnded: self._ended,
            RequestRefused: self._refused,
            RequestPreempted: self._preempted,
            TokensReceived: self._received,
            ModelLoaded: self._loaded,
            StepCompleted: self._step,
        }

    def _loaded(self, event: ModelLoaded) -> None:
        """Requests may be counted under this name from now on."""
        self._know(event.id)

    def _step(self, event: StepCompleted) -> None:
        self._last_step_ns = event.at_ns

    def _queued(self, event: RequestQueued) -> None:
        self._know(event.model)
        self._know(event.requested_model)

    def _admitted(self, event: RequestAdmitted) -> None:
        timeline = self._timelines.of(event.id)
        if timeline is not None and timeline.admitted_ns == event.at_ns:
            self._record_stage(catalogue.QUEUE_TIME, timeline, Stage.WAITING, event.at_ns)

    def _matched(self, event: PrefixMatched) -> None:
        timeline = self._timelines.of(event.id)
        if timeline is not None and timeline.is_first_lookup(event):
            found = {names.CAIRN_RESULT: _result(event), names.CAIRN_STOP_REASON: event.reason}
            self._instruments.add(catalogue.PREFIX_LOOKUPS, 1, found)

    def _computed(self, event: PrefillChunkComputed) -> None:
        if (timeline := self._timelines.of(event.id)) is not None:
            self._count_prompt(timeline, "recomputed" if event.is_resumed else "computed", event.end - event.start)

    def _preempted(self, event: RequestPreempted) -> None:
        if (timeline := self._timelines.of(event.id)) is not None:
            self._instruments.add(catalogue.REQUESTS_PREEMPTED, 1, _model_attributes(timeline.model))

    def _decode_started(self, event: DecodeStarted) -> None:
        timeline = self._timelines.of(event.id)
        if timeline is not None and timeline.decode_started_ns == event.at_ns:
            self._record_stage(catalogue.PREFILL_TIME, timeline, Stage.PREFILLING, event.at_ns)

    def _first_token(self, event: FirstToken) -> None:
        timeline = self._timelines.of(event.id)
        if timeline is not None and timeline.first_token_ns == event.at_ns:
            seconds = timeline.time_to_first_token_s
            attributes = _request_attributes(timeline)
            self._instruments.record(catalogue.TIME_TO_FIRST_TOKEN, seconds, attributes, self._trace_of(event.id))

    def _received(self, event: TokensReceived) -> None:
        """Record one value for all sequences that waited equally long: those that decode together."""
        gaps: set[tuple[ModelId, int]] = set()
        for id, _ in event.counts:
            timeline = self._timelines.of(id)
            if timeline is not None and timeline.last_tokens_ns == event.at_ns and timeline.gap_ns is not None:
                gaps.add((timeline.model, timeline.gap_ns))
        for model, gap_ns in gaps:
            self._instruments.record(catalogue.INTER_TOKEN_LATENCY, gap_ns / 1e9, _model_attributes(model))

    def _ended(self, event: RequestEnded) -> None:
        if (parsing := event.parsing) is not None:
            parser = {names.CAIRN_PARSER: parsing.family or names.PARSER_PLAIN}
            self._instruments.add(catalogue.PARSER_FAILURES, int(parsing.has_failed), parser)
            for kind in parsing.problems:
                self._instruments.add(catalogue.TOOL_CALL_PROBLEMS, 1, {names.CAIRN_KIND: kind})
        timeline = self._timelines.of(event.id)
        if timeline is None or timeline.ended is not event:
            return
        record, add, trace = self._instruments.record, self._instruments.add, self._trace_of(event.id)
        model, request = _model_attributes(timeline.model), _request_attributes(timeline)
        usage, error = event.usage, dict[str, str]()
        if event.error_code is not None:
            error = {names.ERROR_TYPE: event.error_code}
        record(catalogue.REQUEST_DURATION, (event.at_ns - timeline.queued.at_ns) / 1e9, {**request, **error}, trace)
        self._record_stage(catalogue.DECODE_TIME, timeline, Stage.DECODING, event.at_ns)
        if not error:
            per_token_s = timeline.time_per_output_token_s(event.at_ns, usage.completion_tokens)
            record(catalogue.TIME_PER_OUTPUT_TOKEN, per_token_s, request, trace)
        add(catalogue.REQUESTS_ENDED, 1, {**model, names.CAIRN_REASON: event.reason, **error})
        add(catalogue.OUTPUT_TOKENS, usage.completion_tokens, model)
        # A further choice takes over the reused tokens of the first one.
        for tier in TIER_NAMES if not timeline.queued.choice else ():
            self._count_prompt(timeline, tier, usage.reused.get(tier, 0))

    def _refused(self, event: RequestRefused) -> None:
        model = event.model if event.model in self._known_models else names.VALUE_OTHER
        attributes = {names.GEN_AI_REQUEST_MODEL: model, names.ERROR_TYPE: event.error_code}
        self._instruments.add(catalogue.REQUESTS_REFUSED, 1, attributes)

    def _step_age_s(self) -> float:
        """What is open for longer than the last step is old was open when that ended."""
        oldest_ns = self._timelines.oldest_queued_ns()
        return 0.0 if oldest_ns is None else (self._clock.now_ns() - max(oldest_ns, self._last_step_ns)) / 1e9

    def _record_stage(self, spec: MetricSpec, timeline: RequestTimeline, stage: Stage, ended_ns: int) -> None:
        attributes, trace = _model_attributes(timeline.model), self._trace_of(timeline.id)
        self._instruments.record(spec, timeline.time_in_s(stage, ended_ns), attributes, trace)

    def _count_prompt(self, timeline: RequestTimeline, origin: str, num_tokens: int) -> None:
        attributes = {names.GEN_AI_RESPONSE_MODEL: timeline.model, names.CAIRN_ORIGIN: origin}
        self._instruments.add(catalogue.PROMPT_TOKENS, num_tokens, attributes)

    def _know(self, model: ModelId) -> None:
        if len(self._known_models) < MAX_KNOWN_MODELS:
            self._known_models.add(model)

    def _num_open(self, *stages: Stage) -> Iterable[tuple[float, Attributes]]:
        totals: dict[ModelId, int] = {}
        for (model, stage), count in self._timelines.num_in_stage().items():
            totals[model] = totals.get(model, 0) + (count if stage in stages else 0)
        return [(count, _model_attributes(model)) for model, count in totals.items()]

    def _num_waiting_for(self) -> Iterable[tuple[float, Attributes]]:
        return [(count, {names.CAIRN_REASON: reason}) for reason, count in self._timelines.num_waiting_for().items()]


def _result(event: PrefixMatched) -> str:
    if event.reason in TAKES_NO_PART:
        return "off"
    if event.reason == StopReason.LAST_TOKEN.value:
        return "full"
    return "partial" if any(event.reused.values()) else "none"


def _model_attributes(model: ModelId) -> dict[str, str]:
    return {names.GEN_AI_RESPONSE_MODEL: model}


def _request_attributes(timeline: RequestTimeline) -> dict[str, str]:
    return {
        names.GEN_AI_OPERATION_NAME: operation_name(is_chat=timeline.queued.is_chat),
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER_CAIRN,
        names.GEN_AI_REQUEST_MODEL: timeline.queued.requested_model,
        names.GEN_AI_RESPONSE_MODEL: timeline.model,
    }
