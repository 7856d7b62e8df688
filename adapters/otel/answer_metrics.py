"""Metrics of answers as they are read: parsing, tool calls and what is wrong with them."""

from collections.abc import Mapping

from adapters.otel import catalogue
from adapters.otel import semconv as names
from adapters.otel.instruments import Instruments
from adapters.otel.trace_lookup import TraceLookup
from application.answer_events import AnswerParsed
from application.events import ToolCallProblems
from application.services.event_router import Handler


class AnswerMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments, trace_of: TraceLookup) -> None:
        self._instruments = instruments
        self._trace_of = trace_of

    def handlers(self) -> Mapping[type, Handler]:
        return {AnswerParsed: self._parsed, ToolCallProblems: self._problems}

    def _parsed(self, event: AnswerParsed) -> None:
        attributes = {names.CAIRN_PARSER: event.family or names.PARSER_PLAIN}
        self._instruments.record(catalogue.PARSE_TIME, event.parse_ns / 1e9, attributes, self._trace_of(event.id))
        self._instruments.add(catalogue.TOOL_CALLS, event.num_calls, attributes)
        self._instruments.add(catalogue.PARSER_FAILURES, int(event.has_failed), attributes)

    def _problems(self, event: ToolCallProblems) -> None:
        for kind in event.kinds:
            self._instruments.add(catalogue.TOOL_CALL_PROBLEMS, 1, {names.CAIRN_KIND: kind})


__all__ = ("AnswerMetrics",)
