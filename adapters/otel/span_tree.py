"""The open spans of one request: its root and the span of its present phase.

Times are monotonic; the distance to wall time is that of when the request was queued, so that durations within a trace
are exact whatever the wall clock does. A tree is always closed: `end` closes the phase with the root.
"""

from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from adapters.otel import semconv as names
from adapters.otel.span_attributes import Attributes


@dataclass(slots=True)
class PhaseSpan:
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


class SpanTree:
    """The spans of one request. One caller at a time, except for `context`. `offset_ns`: from monotonic to wall time.
    `last_ns`: its last event. `num_reused`: prompt tokens."""

    def __init__(self, tracer: Tracer, root: Span, offset_ns: int, queued_ns: int) -> None:
        self.root = root
        self.context: Context = set_span_in_context(root, Context())
        self.queued_ns = self.last_ns = queued_ns
        self.num_reused = 0
        self.offset_ns = offset_ns
        self._tracer = tracer
        self.phase = PhaseSpan(names.SPAN_QUEUE, self._start(names.SPAN_QUEUE, queued_ns), queued_ns)

    def enter(self, name: str, at_ns: int) -> None:
        """End the phase and begin another one."""
        self._end_phase(at_ns)
        self.phase = PhaseSpan(name, self._start(name, at_ns), at_ns)

    def event(self, name: str, at_ns: int, attributes: Attributes) -> None:
        """Add an event to the span of this phase."""
        self.phase.span.add_event(name, attributes, at_ns + self.offset_ns)

    def add(self, name: str, started_ns: int, ended_ns: int, attributes: Attributes, error: str = "") -> None:
        """Add a span that has ended. `error`: its type, if it failed."""
        span = self._start(name, started_ns, attributes)
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
            span.set_attribute(names.ERROR_TYPE, error)
        span.end(ended_ns + self.offset_ns)

    def fail(self, error_type: str, message: str) -> None:
        """Mark the request and this phase as failed."""
        for span in (self.phase.span, self.root):
            span.set_status(Status(StatusCode.ERROR, message or error_type))
        self.phase.span.set_attribute(names.ERROR_TYPE, error_type)

    def end(self, at_ns: int) -> None:
        """End the phase and the request."""
        self.root.set_attribute(names.CAIRN_ENDED_IN, self.phase.name)
        self._end_phase(at_ns)
        self.root.end(at_ns + self.offset_ns)

    def _end_phase(self, at_ns: int) -> None:
        self.phase.span.set_attributes(self.phase.figures(at_ns, self.num_reused))
        self.phase.span.end(at_ns + self.offset_ns)

    def _start(self, name: str, at_ns: int, attributes: Attributes | None = None) -> Span:
        return self._tracer.start_span(name, self.context, attributes=attributes, start_time=at_ns + self.offset_ns)
