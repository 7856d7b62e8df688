"""Metrics of answers: tool calls that cannot be run, and answers that could not be parsed."""

from collections.abc import Mapping

from adapters.otel import semconv as names
from adapters.otel.instruments import Instruments
from adapters.otel.metric_spec import counter
from application.answer_events import AnswerParsed
from application.events import ToolCallProblems
from application.services.event_router import Handler

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
    TOOL_CALL_PROBLEMS,
    PARSER_FAILURES,
)


class AnswerMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments

    def handlers(self) -> Mapping[type, Handler]:
        return {AnswerParsed: self._parsed, ToolCallProblems: self._problems}

    def _parsed(self, event: AnswerParsed) -> None:
        attributes = {names.CAIRN_PARSER: event.family or names.PARSER_PLAIN}
        self._instruments.add(PARSER_FAILURES, int(event.has_failed), attributes)

    def _problems(self, event: ToolCallProblems) -> None:
        for kind in event.kinds:
            self._instruments.add(TOOL_CALL_PROBLEMS, 1, {names.CAIRN_KIND: kind})


__all__ = (
    "METRICS",
    "AnswerMetrics",
)
