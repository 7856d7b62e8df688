"""The tree of spans of a request, built from events:

    chat {model}                      from RequestQueued to RequestEnded, child of the request's trace context
    ├── queue                         to RequestAdmitted; an event for each reason it waits for
    ├── prefix lookup                 PrefixMatched; the reused tokens and the reason of the stop
    ├── restore                       StateRestored; bytes by tier, and the rate
    ├── prefill                       to DecodeStarted; an event for every chunk, capture and image that is seen
    ├── decode                        an event for the first token; rate and batch sizes
    ├── parse                         of RequestEnded; an answer is parsed while it is decoded
    └── persist                       a batch of records, from its offer to the store until it is stored or dropped

A call of a tool server's tool is a span `execute_tool {tool}`, child of the HTTP request's.

A preempted request has a queue span and its successors again. A refused request has the first span only.

Each span opens with the event that begins it and closes with the event that ends it, or with RequestEnded, in whatever
phase that comes: a tree is always closed. Failures set the status of the request's span and of the phase they happened
in; a cancellation is no error, it shows as the finish reason and as `cairn.ended_in`.

Persist spans may end long after the request. The contexts of the last MAX_LEFT requests that ended are kept for them.

Memory is bounded: past `max_open` requests the oldest tree is closed and marked `cairn.incomplete`. Requests that are
not sampled hold nothing. The compute thread only appends to the SDK's batch queue.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from adapters.otel import semconv as names
from adapters.otel import span_attributes as of
from adapters.otel.message_content import MessageContent
from adapters.otel.span_tree import PhaseSpan, SpanTree
from application import events as on
from application.ports.clock import Clock
from application.services.event_sinks import EventRouter
from domain.ids import RequestId

MAX_OPEN = 16_384
MAX_MESSAGE_CHARS = 1_000
MAX_LEFT = 1_024

PHASES: Mapping[type, str] = {
    on.RequestAdmitted: names.SPAN_PREFILL,
    on.RequestPreempted: names.SPAN_QUEUE,
    on.DecodeStarted: names.SPAN_DECODE,
}
"""The events that begin a phase."""

ENDED_SPANS: Mapping[type, tuple[str, Callable[[Any], of.Attributes]]] = {
    on.PrefixMatched: ("prefix lookup", of.lookup_attributes),
    on.StateRestored: ("restore", of.restore_attributes),
}
"""The events that are a span of their own."""

SPAN_EVENTS: Mapping[type, tuple[str, Callable[[Any], of.Attributes]]] = {
    on.RequestWaits: ("cairn.waits", lambda event: {names.CAIRN_REASON: event.reason}),
    on.PrefixAwaited: ("cairn.prefix.awaited", of.awaited_attributes),
    on.PrefillChunkComputed: ("cairn.prefill.chunk", of.chunk_attributes),
    on.FirstToken: ("cairn.first_token", lambda _: {}),
    on.StateCaptured: ("cairn.state.captured", of.capture_attributes),
    on.ImagesMatched: ("cairn.images.matched", of.images_attributes),
    on.ImageSeen: ("cairn.image.seen", of.tower_attributes),
}
"""The events that are an event of the span of the present phase."""


class SpanEvents(EventRouter):
    """An event sink; events of requests that were never queued change nothing. `content`: the messages, if they are
    captured."""

    def __init__(
        self, tracer: Tracer, clock: Clock, max_open: int = MAX_OPEN, content: MessageContent | None = None
    ) -> None:
        self._tracer = tracer
        self._clock = clock
        self._max_open = max_open
        self._content = content
        self._open: OrderedDict[RequestId, SpanTree] = OrderedDict()
        self._decoding: dict[RequestId, PhaseSpan] = {}
        self._left: OrderedDict[RequestId, tuple[Context, int]] = OrderedDict()  # of requests that ended
        super().__init__(
            "tracing",
            {
                on.RequestQueued: self._queued,
                on.RequestRefused: self._refused,
                **dict.fromkeys(PHASES, self._entered),
                **dict.fromkeys(ENDED_SPANS, self._spanned),
                **dict.fromkeys(SPAN_EVENTS, self._happened),
                on.StepCompleted: self._step,
                on.TokensReceived: self._received,
                on.RequestEnded: self._ended,
                on.RecordsPersisted: self._persisted,
                on.RecordsDropped: self._dropped,
                on.ToolCalled: self._tool_called,
            },
        )

    def num_open(self) -> int:
        """The number of requests with open spans. Any thread."""
        return len(self._open)

    def trace_of(self, id: RequestId) -> Context | None:
        """A TraceLookup: the context of an open request's span."""
        tree = self._open.get(id)
        return tree.context if tree is not None else None

    def close(self) -> None:
        """End all open spans, marked incomplete. No event may follow."""
        while self._open:
            self._abandon(*self._open.popitem(last=False))

    def _queued(self, event: on.RequestQueued) -> None:
        name = f"{event.kind.value} {of.encodable(event.model)}"
        offset_ns = self._offset_ns()
        root = self._start(name, event.trace_carrier, of.request_attributes(event), event.at_ns + offset_ns)
        if not root.is_recording():
            return
        if (replaced := self._open.pop(event.id, None)) is not None:
            self._abandon(event.id, replaced)
        self._open[event.id] = SpanTree(self._tracer, root, offset_ns, event.at_ns)
        if len(self._open) > self._max_open:
            self._abandon(*self._open.popitem(last=False))

    def _refused(self, event: on.RequestRefused) -> None:
        """The span's name has no model: clients invent names."""
        name, offset_ns = event.kind.value, self._offset_ns()
        started_ns = (event.started_ns or event.at_ns) + offset_ns
        span = self._start(name, event.trace_carrier, of.refusal_attributes(event), started_ns)
        span.set_status(Status(StatusCode.ERROR, event.error_code))
        span.end(event.at_ns + offset_ns)

    def _tool_called(self, event: on.ToolCalled) -> None:
        """A span of its own, child of the span that is current for the caller: its HTTP request's."""
        tool, offset_ns = of.encodable(event.tool), self._offset_ns()
        attributes = {
            names.GEN_AI_OPERATION_NAME: names.EXECUTE_TOOL,
            names.GEN_AI_TOOL_NAME: tool,
            names.GEN_AI_TOOL_TYPE: names.TOOL_EXTENSION,
            names.CAIRN_TOOL_SERVER: event.server,
            **({} if event.error_code is None else {names.ERROR_TYPE: event.error_code}),
        }
        name, start_ns = f"{names.EXECUTE_TOOL} {tool}", event.started_ns + offset_ns
        span = self._tracer.start_span(name, None, SpanKind.INTERNAL, attributes, start_time=start_ns)
        if event.error_code is not None:
            span.set_status(Status(StatusCode.ERROR, event.error_code))
        span.end(event.at_ns + offset_ns)

    def _entered(self, event: on.RequestAdmitted | on.RequestPreempted | on.DecodeStarted) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.enter(PHASES[type(event)], event.at_ns)
            self._decoding.pop(event.id, None)
            if tree.phase.name == names.SPAN_DECODE:
                self._decoding[event.id] = tree.phase

    def _spanned(self, event: on.PrefixMatched | on.StateRestored) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            name, attributes = ENDED_SPANS[type(event)]
            tree.add(name, event.started_ns, event.at_ns, attributes(event))
            if isinstance(event, on.PrefixMatched):
                tree.num_reused = sum(event.reused.values())
                tree.root.set_attribute(names.CAIRN_STOP_REASON, event.reason)

    def _happened(
        self,
        event: on.RequestWaits
        | on.PrefixAwaited
        | on.PrefillChunkComputed
        | on.FirstToken
        | on.StateCaptured
        | on.ImagesMatched
        | on.ImageSeen,
    ) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is None:
            return
        name, attributes = SPAN_EVENTS[type(event)]
        tree.event(name, event.at_ns, attributes(event))
        match event:
            case on.PrefillChunkComputed():
                tree.phase.num_chunks += 1
                tree.phase.num_computed += event.end - event.start
            case on.FirstToken():
                seconds = (event.at_ns - tree.queued_ns) / 1e9
                tree.root.set_attribute(names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, seconds)
            case on.ImagesMatched():
                tree.root.set_attributes(attributes(event))
            case on.PrefixAwaited() if (owner := self._open.get(event.owner)) is not None:
                tree.root.add_link(owner.root.get_span_context())
            case _:
                pass

    def _step(self, event: on.StepCompleted) -> None:
        if event.num_decode_tokens:
            for phase in self._decoding.values():
                phase.step(event.num_decode_tokens)

    def _received(self, event: on.TokensReceived) -> None:
        for id, num_tokens in event.counts:
            if (tree := self._open.get(id)) is not None:
                tree.phase.num_decoded += num_tokens

    def _ended(self, event: on.RequestEnded) -> None:
        content = self._content.take(event.id, event.reason) if self._content is not None else {}
        tree = self._open.pop(event.id, None)
        if tree is None:
            return
        if (parsing := event.parsing) is not None:
            error = "parser_failed" if parsing.has_failed else ""
            tree.add("parse", parsing.started_ns, parsing.ended_ns, of.parse_attributes(parsing), error)
        if event.error_code is not None:
            tree.fail(event.error_code, of.encodable(event.error_message, MAX_MESSAGE_CHARS))
        if tree.phase.name == names.SPAN_DECODE:
            tree.phase.span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, event.usage.completion_tokens)
        tree.root.set_attributes({**of.response_attributes(event), **content})
        self._end(event.id, tree, event.at_ns)

    def _persisted(self, event: on.RecordsPersisted) -> None:
        attributes: of.Attributes = {
            "cairn.records.persisted": event.num_records,
            names.CAIRN_STATE_SIZE: event.raw_bytes,
        }
        self._add_persist(event.id, event.offered_ns or event.started_ns, event.at_ns, attributes)

    def _dropped(self, event: on.RecordsDropped) -> None:
        attributes: of.Attributes = {"cairn.records.dropped": event.num_records, names.CAIRN_REASON: event.reason}
        self._add_persist(event.id, event.at_ns, event.at_ns, attributes)

    def _add_persist(self, id: RequestId, started_ns: int, ended_ns: int, attributes: of.Attributes) -> None:
        if (tree := self._open.get(id)) is not None:
            context, offset_ns = tree.context, tree.offset_ns
        elif (left := self._left.get(id)) is not None:
            context, offset_ns = left
        else:
            return
        span = self._tracer.start_span("persist", context, attributes=attributes, start_time=started_ns + offset_ns)
        span.end(ended_ns + offset_ns)

    def _seen(self, id: RequestId, at_ns: int) -> SpanTree | None:
        tree = self._open.get(id)
        if tree is not None:
            tree.last_ns = at_ns
        return tree

    def _abandon(self, id: RequestId, tree: SpanTree) -> None:
        tree.root.set_attribute(names.CAIRN_INCOMPLETE, True)
        self._end(id, tree, tree.last_ns)

    def _end(self, id: RequestId, tree: SpanTree, at_ns: int) -> None:
        """End a tree that is no longer open, and keep its context without its attributes."""
        tree.end(at_ns)
        self._decoding.pop(id, None)
        self._left[id] = set_span_in_context(NonRecordingSpan(tree.root.get_span_context()), Context()), tree.offset_ns
        if len(self._left) > MAX_LEFT:
            self._left.popitem(last=False)

    def _start(self, name: str, carrier: Mapping[str, str], attributes: of.Attributes, start_ns: int) -> Span:
        """Start a root span. `carrier`: the headers of the caller's trace context."""
        parent = propagate.extract(carrier, Context())
        return self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes, start_time=start_ns)

    def _offset_ns(self) -> int:
        """The present distance from monotonic to wall time."""
        return self._clock.unix_ns() - self._clock.now_ns()
