"""The open spans of one request: its root, the span of its present phase, and the records it left for the store.

Times are monotonic; the distance to wall time is that of when the request was queued, so that durations within a trace
are exact whatever the wall clock does. A tree is always closed: `end` closes the phase with the root.
"""

from collections import Counter
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from adapters.otel import semconv as names
from adapters.otel.span_attributes import Attributes, encodable
from application import events as on


@dataclass(slots=True)
class Phase:
    """A phase with its open span and its figures. `num_decoded`: output tokens of the request. `num_steps`,
    `num_batch_tokens` and `max_batch`: the decode steps meanwhile, with the tokens of all requests."""

    name: str
    span: Span
    started_ns: int
    num_chunks: int = 0
    num_computed: int = 0
    num_decoded: int = 0
    num_steps: int = 0
    num_batch_tokens: int = 0
    max_batch: int = 0

    def step(self, size: int) -> None:
        """Count a step that decoded `size` tokens."""
        self.num_steps += 1
        self.num_batch_tokens += size
        self.max_batch = max(self.max_batch, size)

    def figures(self, at_ns: int, num_reused: int) -> Attributes:
        """The attributes of prefill or decode at the end of the phase."""
        if self.name == names.SPAN_PREFILL:
            return {
                "cairn.prefill.chunks": self.num_chunks,
                "cairn.prompt.computed_tokens": self.num_computed,
                "cairn.prompt.reused_tokens": num_reused,
            }
        figures: Attributes = {}
        if self.num_decoded and at_ns > self.started_ns:
            figures["cairn.decode.tokens"] = self.num_decoded
            figures["cairn.decode.rate"] = self.num_decoded / ((at_ns - self.started_ns) / 1e9)
        if self.num_steps:
            figures["cairn.decode.steps"] = self.num_steps
            figures["cairn.decode.batch.mean"] = self.num_batch_tokens / self.num_steps
            figures["cairn.decode.batch.max"] = self.max_batch
        return figures


@dataclass(slots=True)
class Records:
    """The records of one request on their way to the store. `link`: to its request; `offset_ns`: from monotonic to wall
    time; `ended_ns`: the end of the request. `num_pending`: records that were offered and are not settled; negative for
    a moment if a worker reports first."""

    link: Link
    offset_ns: int
    ended_ns: int = 0
    first_ns: int | None = None
    last_ns: int = 0
    num_pending: int = 0
    num_persisted: int = 0
    raw_bytes: int = 0
    max_lag_ns: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])

    def note(self, event: on.RecordsOffered | on.RecordsPersisted | on.RecordsDropped) -> None:
        self.first_ns = event.at_ns if self.first_ns is None else min(self.first_ns, event.at_ns)
        self.last_ns = max(self.last_ns, event.at_ns)
        match event:
            case on.RecordsOffered():
                self.num_pending += event.num_records
            case on.RecordsPersisted():
                self.num_pending -= event.num_records
                self.num_persisted += event.num_records
                self.raw_bytes += event.raw_bytes
                self.max_lag_ns = max(self.max_lag_ns, event.at_ns - (event.offered_ns or event.started_ns))
            case on.RecordsDropped():
                self.num_pending -= event.num_records if event.was_offered else 0
                self.dropped[event.reason] += event.num_records

    def add_span(self, tracer: Tracer, id: str) -> None:
        """Add the persist span, marked incomplete if records are pending. Without any record there is none."""
        if self.first_ns is None:
            return
        attributes: Attributes = {
            names.GEN_AI_RESPONSE_ID: encodable(id),
            "cairn.records.persisted": self.num_persisted,
            names.CAIRN_RECORDS_DROPPED: sum(self.dropped.values()),
            names.CAIRN_STATE_SIZE: self.raw_bytes,
            "cairn.persist.lag": self.max_lag_ns / 1e9,
        }
        if self.num_pending:
            attributes[names.CAIRN_INCOMPLETE] = True
        start_ns, end_ns = self.first_ns + self.offset_ns, self.last_ns + self.offset_ns
        span = tracer.start_span("persist", Context(), SpanKind.INTERNAL, attributes, [self.link], start_ns)
        for reason, num_records in self.dropped.items():
            dropped: Attributes = {names.CAIRN_REASON: reason, names.CAIRN_RECORDS_DROPPED: num_records}
            span.add_event("cairn.records.dropped", dropped, end_ns)
        span.end(end_ns)


class SpanTree:
    """The spans of one request. One caller at a time, except for `context`. `offset_ns`: from monotonic to wall time.
    `last_ns`: its last event. `num_reused`: prompt tokens."""

    def __init__(self, tracer: Tracer, root: Span, offset_ns: int, queued_ns: int) -> None:
        self.root = root
        self.context: Context = set_span_in_context(root, Context())
        self.queued_ns = self.last_ns = queued_ns
        self.num_reused = 0
        self.records = Records(Link(root.get_span_context()), offset_ns)
        self._offset_ns = offset_ns
        self._tracer = tracer
        self.phase = Phase(names.SPAN_QUEUE, self._start(names.SPAN_QUEUE, queued_ns), queued_ns)

    def enter(self, name: str, at_ns: int) -> None:
        """End the phase and begin another one."""
        self._end_phase(at_ns)
        self.phase = Phase(name, self._start(name, at_ns), at_ns)

    def event(self, name: str, at_ns: int, attributes: Attributes) -> None:
        """Add an event to the span of this phase."""
        self.phase.span.add_event(name, attributes, at_ns + self._offset_ns)

    def add(self, name: str, started_ns: int, ended_ns: int, attributes: Attributes, error: str = "") -> None:
        """Add a span that has ended. `error`: its type, if it failed."""
        span = self._start(name, started_ns, attributes)
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
            span.set_attribute(names.ERROR_TYPE, error)
        span.end(ended_ns + self._offset_ns)

    def fail(self, error_type: str, message: str) -> None:
        """Mark the request and this phase as failed."""
        for span in (self.phase.span, self.root):
            span.set_status(Status(StatusCode.ERROR, message or error_type))
        self.phase.span.set_attribute(names.ERROR_TYPE, error_type)

    def end(self, at_ns: int) -> None:
        """End the phase and the request."""
        self.records.ended_ns = at_ns
        self.root.set_attribute(names.CAIRN_ENDED_IN, self.phase.name)
        self._end_phase(at_ns)
        self.root.end(at_ns + self._offset_ns)

    def _end_phase(self, at_ns: int) -> None:
        self.phase.span.set_attributes(self.phase.figures(at_ns, self.num_reused))
        self.phase.span.end(at_ns + self._offset_ns)

    def _start(self, name: str, at_ns: int, attributes: Attributes | None = None) -> Span:
        return self._tracer.start_span(name, self.context, attributes=attributes, start_time=at_ns + self._offset_ns)
