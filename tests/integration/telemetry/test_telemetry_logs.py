"""Log lines as OpenTelemetry records: their trace, and the parts of an exception that are exported."""

import logging
from collections.abc import Iterator

import pytest
from opentelemetry.sdk._logs import LoggerProvider, ReadableLogRecord
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

from adapters.otel.log_export import MAX_CHARS, LogExport
from tests.support.telemetry.otel import SpanRecorder

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Lines:
    """A provider and the records that it received."""

    def __init__(self) -> None:
        self._exporter = InMemoryLogRecordExporter()
        self.provider = LoggerProvider(shutdown_on_exit=False)
        self.provider.add_log_record_processor(SimpleLogRecordProcessor(self._exporter))

    def records(self) -> list[ReadableLogRecord]:
        return list(self._exporter.get_finished_logs())

    def last(self) -> ReadableLogRecord:
        return self.records()[-1]


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    export = LogExport(lines.provider)
    export.attach()
    yield lines
    export.detach()
    lines.provider.shutdown()


def test_a_line_is_a_record_of_its_logger(lines: Lines) -> None:
    logging.getLogger("cairn.engine").warning("model %s unloaded", "demo")
    told = lines.last()
    assert told.instrumentation_scope is not None
    assert told.instrumentation_scope.name == "cairn.engine"
    assert (told.log_record.body, told.log_record.severity_text) == ("model demo unloaded", "WARN")
    assert told.log_record.trace_id == 0


def test_a_line_that_names_its_trace_is_of_it(lines: Lines) -> None:
    about = {"trace_id": TRACE_ID, "span_id": SPAN_ID, "request_id": "r-1"}
    logging.getLogger("cairn.requests").error("request ended", extra=about)
    record = lines.last().log_record
    assert (f"{record.trace_id:032x}", f"{record.span_id:016x}") == (TRACE_ID, SPAN_ID)
    assert dict(record.attributes or {}) == {"gen_ai.response.id": "r-1"}


def test_any_other_line_is_of_the_trace_that_is_current(lines: Lines) -> None:
    tracer = SpanRecorder().provider.get_tracer("test")
    with tracer.start_as_current_span("http") as span:
        logging.getLogger("cairn.http").error("failed")
    assert lines.last().log_record.trace_id == span.get_span_context().trace_id


def test_an_exception_is_exported_without_its_message(lines: Lines) -> None:
    said = "the heron nests at dawn"
    try:
        raise ValueError(said)
    except ValueError as error:
        logging.getLogger("cairn.http").error("a request failed", exc_info=error)
    attributes = dict(lines.last().log_record.attributes or {})
    assert attributes["exception.type"] == "ValueError"
    assert "test_telemetry_logs.py" in str(attributes["exception.stacktrace"])
    assert said not in repr(lines.last().to_json())


def test_lines_are_short_and_can_be_sent(lines: Lines) -> None:
    # Not by a logger: a worker of the test run could not send a report with this line in it either.
    record = logging.LogRecord("cairn", logging.ERROR, __file__, 1, "\ud800" + "x" * 100_000, None, None)
    LogExport(lines.provider).emit(record)
    body = lines.last().log_record.body
    assert isinstance(body, str)
    assert body[:2] == "?x"
    assert len(body) == MAX_CHARS


def test_lines_of_others_are_theirs(lines: Lines) -> None:
    logging.getLogger("httpx").error("said something")
    logging.getLogger("cairnish").error("as well")
    assert lines.records() == []


def test_a_detached_handler_exports_nothing() -> None:
    lines = Lines()
    export = LogExport(lines.provider)
    export.attach()
    export.detach()
    logging.getLogger("cairn").error("late")
    assert lines.records() == []
    lines.provider.shutdown()
