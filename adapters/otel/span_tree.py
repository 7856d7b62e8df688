"""The open span of a request and the span of its present phase.

Times are monotonic; the distance to wall time is that of when the request was queued, so that durations within a trace
are exact whatever the wall clock does. A tree is always closed: `end` closes the phase with the root.
"""

from bisect import bisect_left
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode, Tracer, set_span_in_context

from adapters.otel import semconv as names
from adapters.otel.span_attributes import Attributes


class Mark(NamedTuple):
    """A position between two steps."""

    num_steps: int = 0
    num_tokens: int = 0


class DecodeBatches:
    """The batch sizes of decode steps since a mark, at a cost a step that does not depend on the number of requests.

    Steps are numbered; their sizes are summed, and of the largest ones only those are kept that no later step exceeds:

        step      1  2  3  4  5  6  7
        size      8  3  5  2  4  1  1
        kept      8     5     4     1      so the largest since step 4 is 4

    One caller at a time. What is kept is bounded by the largest size there is.
    """

    def __init__(self) -> None:
        self._now = Mark()
        self._steps: list[int] = []
        self._sizes: list[int] = []

    def step(self, size: int) -> None:
        """Record a step that decoded `size` tokens."""
        self._now = Mark(self._now.num_steps + 1, self._now.num_tokens + size)
        while self._sizes and self._sizes[-1] <= size:
            self._sizes.pop()
            self._steps.pop()
        self._sizes.append(size)
        self._steps.append(self._now.num_steps)

    def mark(self) -> Mark:
        return self._now

    def num_steps_since(self, mark: Mark) -> int:
        return self._now.num_steps - mark.num_steps

    def mean_since(self, mark: Mark) -> float:
        """0 when there was no step."""
        return (self._now.num_tokens - mark.num_tokens) / max(1, self.num_steps_since(mark))

    def max_since(self, mark: Mark) -> int:
        """0 when there was no step."""
        index = bisect_left(self._steps, mark.num_steps + 1)
        return self._sizes[index] if index < len(self._sizes) else 0


class SpanTree:
    """The spans of one request. One caller at a time, except for `context`. `num_reused`: prompt tokens.
    `batches`: of all requests."""

    def __init__(self, tracer: Tracer, batches: DecodeBatches, root: Span, offset_ns: int, queued_ns: int) -> None:
        self.root = root
        self.context: Context = set_span_in_context(root, Context())
        self.offset_ns = offset_ns
        self.queued_ns = queued_ns
        self.last_ns = queued_ns
        self.num_chunks = self.num_computed = self.num_reused = self.num_decoded = 0
        self._batches = batches
        self._mark = Mark()
        self.phase_started_ns = queued_ns
        self._tracer = tracer
        self.phase_name = names.SPAN_QUEUE
        self.phase = self._start(names.SPAN_QUEUE, queued_ns)

    def enter(self, name: str, at_ns: int) -> None:
        """End the phase and begin another one."""
        self.end_phase(at_ns)
        self.phase, self.phase_name, self.phase_started_ns = self._start(name, at_ns), name, at_ns
        self.num_chunks = self.num_computed = self.num_decoded = 0
        self._mark = self._batches.mark()

    def event(self, name: str, at_ns: int, attributes: Attributes | None = None) -> None:
        """Add an event to the span of this phase."""
        self.phase.add_event(name, attributes, at_ns + self.offset_ns)

    def add(self, name: str, started_ns: int, ended_ns: int, attributes: Attributes, error: str = "") -> None:
        """Add a span that has ended. `error`: its type, if it failed."""
        span = self._start(name, started_ns, attributes)
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
            span.set_attribute(names.ERROR_TYPE, error)
        span.end(ended_ns + self.offset_ns)

    def fail(self, error_type: str, message: str) -> None:
        """Mark the request and this phase as failed."""
        status = Status(StatusCode.ERROR, message or error_type)
        for span in (self.phase, self.root):
            span.set_status(status)
        self.phase.set_attribute(names.ERROR_TYPE, error_type)

    def end_phase(self, at_ns: int) -> None:
        """End the span of this phase, with the figures of prefill or decode."""
        if self.phase_name == names.SPAN_PREFILL:
            self.phase.set_attribute(names.CAIRN_CHUNKS, self.num_chunks)
            self.phase.set_attribute(names.CAIRN_COMPUTED_TOKENS, self.num_computed)
            self.phase.set_attribute(names.CAIRN_REUSED_TOKENS, self.num_reused)
        elif self.phase_name == names.SPAN_DECODE:
            self._set_decode_figures((at_ns - self.phase_started_ns) / 1e9)
        self.phase.end(at_ns + self.offset_ns)

    def end(self, at_ns: int) -> None:
        self.root.set_attribute(names.CAIRN_ENDED_IN, self.phase_name)
        self.end_phase(at_ns)
        self.root.end(at_ns + self.offset_ns)

    def _set_decode_figures(self, seconds: float) -> None:
        if self.num_decoded and seconds > 0:
            self.phase.set_attribute(names.CAIRN_DECODE_TOKENS, self.num_decoded)
            self.phase.set_attribute(names.CAIRN_DECODE_RATE, self.num_decoded / seconds)
        if num_steps := self._batches.num_steps_since(self._mark):
            self.phase.set_attribute(names.CAIRN_DECODE_STEPS, num_steps)
            self.phase.set_attribute(names.CAIRN_BATCH_MEAN, self._batches.mean_since(self._mark))
            self.phase.set_attribute(names.CAIRN_BATCH_MAX, self._batches.max_since(self._mark))

    def _start(self, name: str, at_ns: int, attributes: Attributes | None = None) -> Span:
        return self._tracer.start_span(name, self.context, attributes=attributes, start_time=at_ns + self.offset_ns)
