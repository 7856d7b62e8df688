"""Metrics of answers as they are read: parsing, tool calls and what is wrong with them."""

from collections.abc import Mapping

from adapters.otel import semconv as names
from adapters.otel.buckets import STEP_BUCKETS
from adapters.otel.instruments import Instruments
from adapters.otel.metric_spec import counter, histogram
from adapters.otel.trace_lookup import TraceLookup
from application.answer_events import AnswerParsed
from application.events import ToolCallProblems
from application.services.event_router import Handler

PARSE_TIME = histogram(
    names.CAIRN_PARSE_TIME,
    "s",
    "Time that reading an answer took of the event loop: detokenizing, parsing, stop strings.",
    STEP_BUCKETS,
    names.CAIRN_PARSER,
)
TOOL_CALLS = counter(names.CAIRN_TOOL_CALLS, "{call}", "Tool calls read out of answers.", names.CAIRN_PARSER)
TOOL_CALL_PROBLEMS = counter(
    names.CAIRN_TOOL_CALL_PROBLEMS,
    "{call}",
    "Tool calls that cannot be run as they are: unknown_tool, malformed_arguments or schema_mismatch.",
    names.CAIRN_KIND,
)
PARSER_FAILURES = counter(
    names.CAIRN_PARSER_FAILURES, "{request}", "Answers that their parser failed on.", names.CAIRN_PARSER
)

METRICS = (
    PARSE_TIME,
    TOOL_CALLS,
    TOOL_CALL_PROBLEMS,
    PARSER_FAILURES,
)


class AnswerMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments, trace_of: TraceLookup) -> None:
        self._instruments = instruments
        self._trace_of = trace_of

    def handlers(self) -> Mapping[type, Handler]:
        return {AnswerParsed: self._parsed, ToolCallProblems: self._problems}

    def _parsed(self, event: AnswerParsed) -> None:
        attributes = {names.CAIRN_PARSER: event.family or names.PARSER_PLAIN}
        self._instruments.record(PARSE_TIME, event.parse_ns / 1e9, attributes, self._trace_of(event.id))
        self._instruments.add(TOOL_CALLS, event.num_calls, attributes)
        self._instruments.add(PARSER_FAILURES, int(event.has_failed), attributes)

    def _problems(self, event: ToolCallProblems) -> None:
        for kind in event.kinds:
            self._instruments.add(TOOL_CALL_PROBLEMS, 1, {names.CAIRN_KIND: kind})


__all__ = (
    "METRICS",
    "AnswerMetrics",
)
