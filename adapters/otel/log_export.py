"""Cairn's own log lines as OpenTelemetry log records, each with the trace it belongs to.

The lines are those of the log, which hold no text of a prompt or an answer. Of an exception the type
and the stack are sent, not the message: other libraries quote their input in theirs.
"""

import logging
import traceback

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context, get_current
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from adapters.otel import semconv as names
from adapters.otel.span_attributes import Attributes, encodable

ROOT = "cairn"
"""The logger whose lines are exported, with its children."""

MAX_CHARS = 4_000

_SEVERITIES = (
    (logging.CRITICAL, SeverityNumber.FATAL, "FATAL"),
    (logging.ERROR, SeverityNumber.ERROR, "ERROR"),
    (logging.WARNING, SeverityNumber.WARN, "WARN"),
    (logging.INFO, SeverityNumber.INFO, "INFO"),
    (logging.NOTSET, SeverityNumber.DEBUG, "DEBUG"),
)


class LogExport(logging.Handler):
    """A logging handler that exports lines. `attach` it to begin, `detach` it before the provider is shut down."""

    def __init__(self, provider: LoggerProvider) -> None:
        super().__init__()
        self._provider = provider

    def attach(self) -> None:
        logging.getLogger(ROOT).addHandler(self)

    def detach(self) -> None:
        logging.getLogger(ROOT).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            logger = self._provider.get_logger(record.name)
            logger.emit(_exported(record))
        except Exception:
            self.handleError(record)


def _exported(record: logging.LogRecord) -> LogRecord:
    number, text = next((number, text) for level, number, text in _SEVERITIES if record.levelno >= level)
    attributes: Attributes = {}
    if record.exc_info is not None and record.exc_info[0] is not None:
        attributes[names.EXCEPTION_TYPE] = record.exc_info[0].__name__
        frames = traceback.format_tb(record.exc_info[2])
        attributes[names.EXCEPTION_STACKTRACE] = encodable("".join(frames)[-MAX_CHARS:], MAX_CHARS)
    if request_id := getattr(record, "request_id", ""):
        attributes[names.GEN_AI_RESPONSE_ID] = encodable(str(request_id))
    return LogRecord(
        timestamp=int(record.created * 1e9),
        observed_timestamp=int(record.created * 1e9),
        context=_context(record),
        severity_text=text,
        severity_number=number,
        body=encodable(record.getMessage(), MAX_CHARS),
        attributes=attributes,
    )


def _context(record: logging.LogRecord) -> Context:
    """The trace that the line names, or else the current one where it was logged."""
    trace_id, span_id = getattr(record, "trace_id", ""), getattr(record, "span_id", "")
    if not (trace_id and span_id):
        return get_current()
    span = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(span), Context())
