"""Metrics of requests: how many, how long, how many tokens.

Names a client invents never become attribute values: a refused request counts under the model it named only if that
model has been served here. Computed prompt tokens are counted as they are computed, so a cancelled prefill counts for
what it cost; output and reused tokens when the request ends.
"""

from collections.abc import Iterable, Mapping

from adapters.otel import catalogue
from adapters.otel import semconv as names
from adapters.otel.instruments import Attributes, Instruments
from adapters.otel.span_attributes import operation_name
from application.events import (
    DecodeStarted,
    FirstToken,
    ModelLoaded,
    PrefillChunkComputed,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestQueued,
    RequestRefused,
    RequestWaits,
    ToolCallProblems,
)
from application.services.event_router import Handler
from application.services.request_timelines import RequestTimeline, RequestTimelines, Stage
from domain.explanation import TIER_NAMES
from domain.ids import ModelId

MAX_KNOWN_MODELS = 1_024


class RequestMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._timelines = RequestTimelines()
        self._known_models: set[ModelId] = set()
        instruments.observe(catalogue.REQUESTS_WAITING, lambda: self._num_open(Stage.WAITING))
        instruments.observe(catalogue.REQUESTS_WAITING_FOR, self._num_waiting_for)
        instruments.observe(catalogue.REQUESTS_RUNNING, lambda: self._num_open(Stage.PREFILLING, Stage.DECODING))

    def handlers(self) -> Mapping[type, Handler]:
        return {
            RequestQueued: self._queued,
            RequestWaits: self._timelines.waits,
            RequestAdmitted: self._admitted,
            PrefillChunkComputed: self._computed,
            DecodeStarted: self._decode_started,
            FirstToken: self._first_token,
            RequestEnded: self._ended,
            RequestRefused: self._refused,
            RequestPreempted: self._preempted,
            ToolCallProblems: self._call_problems,
        }

    def loaded(self, event: ModelLoaded) -> None:
        """Requests may be counted under this name from now on."""
        self._know(event.id)

    def _queued(self, event: RequestQueued) -> None:
        self._timelines.queued(event)
        self._know(event.model)
        self._know(event.requested_model)

    def _admitted(self, event: RequestAdmitted) -> None:
        if (timeline := self._timelines.admitted(event)) is not None:
            self._record_stage(catalogue.QUEUE_TIME, timeline, Stage.WAITING, event.at_ns)

    def _computed(self, event: PrefillChunkComputed) -> None:
        if (timeline := self._timelines.computed(event)) is not None:
            self._count_prompt(timeline, "recomputed" if event.is_resumed else "computed", event.end - event.start)

    def _preempted(self, event: RequestPreempted) -> None:
        if (timeline := self._timelines.get(event.id)) is not None:
            self._instruments.add(catalogue.REQUESTS_PREEMPTED, 1, _model_attributes(timeline.model))

    def _decode_started(self, event: DecodeStarted) -> None:
        if (timeline := self._timelines.decode_started(event)) is not None:
            self._record_stage(catalogue.PREFILL_TIME, timeline, Stage.PREFILLING, event.at_ns)

    def _first_token(self, event: FirstToken) -> None:
        if (timeline := self._timelines.first_token(event)) is not None:
            seconds = timeline.time_to_first_token_s
            self._instruments.record(catalogue.TIME_TO_FIRST_TOKEN, seconds, _request_attributes(timeline))

    def _ended(self, event: RequestEnded) -> None:
        timeline = self._timelines.ended(event)
        if timeline is None:
            return
        record, add = self._instruments.record, self._instruments.add
        model, request = _model_attributes(timeline.model), _request_attributes(timeline)
        usage, error = event.usage, dict[str, str]()
        if event.error_code is not None:
            error = {names.ERROR_TYPE: event.error_code}
        record(catalogue.REQUEST_DURATION, (event.at_ns - timeline.queued_ns) / 1e9, {**request, **error})
        self._record_stage(catalogue.DECODE_TIME, timeline, Stage.DECODING, event.at_ns)
        if not error:
            per_token_s = timeline.time_per_output_token_s(event.at_ns, usage.completion_tokens)
            record(catalogue.TIME_PER_OUTPUT_TOKEN, per_token_s, request)
        add(catalogue.REQUESTS_ENDED, 1, {**model, names.CAIRN_REASON: event.reason, **error})
        add(catalogue.OUTPUT_TOKENS, usage.completion_tokens, model)
        for tier in TIER_NAMES:
            self._count_prompt(timeline, tier, usage.reused.get(tier, 0))

    def _refused(self, event: RequestRefused) -> None:
        model = event.model if event.model in self._known_models else names.VALUE_OTHER
        attributes = {names.GEN_AI_REQUEST_MODEL: model, names.ERROR_TYPE: event.error_code}
        self._instruments.add(catalogue.REQUESTS_REFUSED, 1, attributes)

    def _call_problems(self, event: ToolCallProblems) -> None:
        for kind in event.kinds:
            self._instruments.add(catalogue.TOOL_CALL_PROBLEMS, 1, {names.CAIRN_KIND: kind})

    def _record_stage(self, spec: catalogue.MetricSpec, timeline: RequestTimeline, stage: Stage, ended_ns: int) -> None:
        self._instruments.record(spec, timeline.time_in_s(stage, ended_ns), _model_attributes(timeline.model))

    def _count_prompt(self, timeline: RequestTimeline, origin: str, num_tokens: int) -> None:
        attributes = {names.GEN_AI_RESPONSE_MODEL: timeline.model, names.CAIRN_ORIGIN: origin}
        self._instruments.add(catalogue.PROMPT_TOKENS, num_tokens, attributes)

    def _know(self, model: ModelId) -> None:
        if len(self._known_models) < MAX_KNOWN_MODELS:
            self._known_models.add(model)

    def _num_open(self, *stages: Stage) -> Iterable[tuple[float, Attributes]]:
        totals: dict[ModelId, int] = {}
        for (model, stage), count in self._timelines.num_open().items():
            totals[model] = totals.get(model, 0) + (count if stage in stages else 0)
        return [(count, _model_attributes(model)) for model, count in totals.items()]

    def _num_waiting_for(self) -> Iterable[tuple[float, Attributes]]:
        return [(count, {names.CAIRN_REASON: reason}) for reason, count in self._timelines.num_waiting_for().items()]


def _model_attributes(model: ModelId) -> dict[str, str]:
    return {names.GEN_AI_RESPONSE_MODEL: model}


def _request_attributes(timeline: RequestTimeline) -> dict[str, str]:
    return {
        names.GEN_AI_OPERATION_NAME: operation_name(is_chat=timeline.is_chat),
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER_CAIRN,
        names.GEN_AI_REQUEST_MODEL: timeline.requested_model,
        names.GEN_AI_RESPONSE_MODEL: timeline.model,
    }


__all__ = ("MAX_KNOWN_MODELS", "RequestMetrics")
