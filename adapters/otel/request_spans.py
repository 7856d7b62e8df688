"""The tree of spans of a request, built from events:

    chat {model}                      from RequestQueued to RequestEnded, child of the request's trace context
    ├── queue                         to RequestAdmitted; an event for each reason it waits for
    ├── prefix lookup                 PrefixMatched; the reused tokens and the reason of the stop
    ├── restore                       StateRestored; bytes by tier, and the rate
    ├── prefill                       to DecodeStarted; an event for every chunk and every capture
    ├── decode                        an event for the first token; rate and batch sizes
    └── parse                         of RequestEnded; an answer is parsed while it is decoded
    persist                           linked to it: see `persist_spans`

A preempted request has a queue span and its successors again. A refused request has the first span only.

Each span opens with the event that begins it and closes with the event that ends it, or with RequestEnded, in whatever
phase that comes: a tree is always closed. Failures set the status of the request's span and of the phase they happened
in; a cancellation is no error, it shows as the finish reason and as `cairn.ended_in`.

Memory is bounded: past `max_open` requests the oldest tree is closed and marked `cairn.incomplete`. Requests the
sampler leaves out hold nothing. The compute thread only appends to the SDK's batch queue.
"""

from collections import OrderedDict

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from adapters.otel import semconv as names
from adapters.otel.message_content import MessageContent
from adapters.otel.persist_spans import PersistSpans
from adapters.otel.span_attributes import (
    Attributes,
    encodable,
    lookup_attributes,
    operation_name,
    parse_attributes,
    refusal_attributes,
    request_attributes,
    response_attributes,
    restore_attributes,
)
from adapters.otel.span_tree import DecodeBatches, SpanTree
from application.events import (
    DecodeStarted,
    FirstToken,
    PrefillChunkComputed,
    PrefixAwaited,
    PrefixMatched,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestQueued,
    RequestRefused,
    RequestWaits,
    StateCaptured,
    StateRestored,
    StepCompleted,
    TokensReceived,
)
from application.ports.clock import Clock
from application.services.event_sinks import EventRouter
from domain.ids import RequestId

MAX_OPEN = 16_384
MAX_MESSAGE_CHARS = 1_000


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
        self._trees: OrderedDict[RequestId, SpanTree] = OrderedDict()
        self._batches = DecodeBatches()
        self._persist = PersistSpans(tracer, max_open)
        super().__init__(
            "tracing",
            {
                RequestQueued: self._queued,
                RequestRefused: self._refused,
                RequestWaits: self._waits,
                RequestAdmitted: self._admitted,
                RequestPreempted: self._preempted,
                PrefillChunkComputed: self._computed,
                DecodeStarted: self._decode_started,
                FirstToken: self._first_token,
                StepCompleted: self._step,
                TokensReceived: self._received,
                RequestEnded: self._ended,
                PrefixMatched: self._matched,
                PrefixAwaited: self._awaited,
                StateRestored: self._restored,
                StateCaptured: self._captured,
                **self._persist.handlers(),
            },
        )

    def num_open(self) -> int:
        """The number of requests with open spans. Any thread."""
        return len(self._trees)

    def trace_of(self, id: RequestId) -> Context | None:
        """A TraceLookup: the context of an open request's span."""
        tree = self._trees.get(id)
        return tree.context if tree is not None else None

    def close(self) -> None:
        """End all open spans, marked incomplete. No event may follow."""
        while self._trees:
            self._abandon(*self._trees.popitem(last=False))
        self._persist.close()

    def _queued(self, event: RequestQueued) -> None:
        offset_ns = self._offset_ns()
        root = self._tracer.start_span(
            f"{operation_name(is_chat=event.is_chat)} {encodable(event.model)}",
            propagate.extract(event.trace_carrier, Context()),
            SpanKind.INTERNAL,
            request_attributes(event),
            start_time=event.at_ns + offset_ns,
        )
        if not root.is_recording():
            return
        if (replaced := self._trees.pop(event.id, None)) is not None:
            self._abandon(event.id, replaced)
        tree = self._trees[event.id] = SpanTree(self._tracer, self._batches, root, offset_ns, event.at_ns)
        self._persist.begin(event.id, tree)
        if len(self._trees) > self._max_open:
            self._abandon(*self._trees.popitem(last=False))

    def _refused(self, event: RequestRefused) -> None:
        """The span's name has no model: clients invent names."""
        offset_ns = self._offset_ns()
        span = self._tracer.start_span(
            operation_name(is_chat=event.is_chat),
            propagate.extract(event.trace_carrier, Context()),
            SpanKind.INTERNAL,
            refusal_attributes(event),
            start_time=(event.started_ns or event.at_ns) + offset_ns,
        )
        span.set_status(Status(StatusCode.ERROR, event.error_code))
        span.end(event.at_ns + offset_ns)

    def _waits(self, event: RequestWaits) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.event(names.EVENT_WAITS, event.at_ns, {names.CAIRN_REASON: event.reason})

    def _admitted(self, event: RequestAdmitted) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.enter(names.SPAN_PREFILL, event.at_ns)

    def _preempted(self, event: RequestPreempted) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.enter(names.SPAN_QUEUE, event.at_ns)

    def _computed(self, event: PrefillChunkComputed) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is None:
            return
        tree.num_chunks += 1
        tree.num_computed += event.end - event.start
        chunk: Attributes = {
            names.CAIRN_CHUNK_START: event.start,
            names.CAIRN_CHUNK_END: event.end,
            names.CAIRN_CHUNK_DURATION: (event.at_ns - event.started_ns) / 1e9,
        }
        tree.event(names.EVENT_CHUNK, event.at_ns, chunk)

    def _decode_started(self, event: DecodeStarted) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.enter(names.SPAN_DECODE, event.at_ns)

    def _first_token(self, event: FirstToken) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            seconds = (event.at_ns - tree.queued_ns) / 1e9
            tree.root.set_attribute(names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, seconds)
            tree.event(names.EVENT_FIRST_TOKEN, event.at_ns)

    def _step(self, event: StepCompleted) -> None:
        if event.num_decode_tokens:
            self._batches.step(event.num_decode_tokens)

    def _received(self, event: TokensReceived) -> None:
        for id, num_tokens in event.counts:
            if (tree := self._trees.get(id)) is not None:
                tree.num_decoded += num_tokens

    def _ended(self, event: RequestEnded) -> None:
        content = self._content.take(event.id, event.reason) if self._content is not None else None
        tree = self._trees.pop(event.id, None)
        if tree is None:
            return
        if (parsing := event.parsing) is not None:
            error = names.PARSER_FAILED if parsing.has_failed else ""
            tree.add(names.SPAN_PARSE, parsing.started_ns, parsing.ended_ns, parse_attributes(parsing), error)
        if event.error_code is not None:
            tree.fail(event.error_code, encodable(event.error_message, MAX_MESSAGE_CHARS))
        if tree.phase_name == names.SPAN_DECODE:
            num_tokens = event.usage.completion_tokens
            tree.phase.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, num_tokens)
        tree.root.set_attributes({**response_attributes(event), **(content or {})})
        tree.end(event.at_ns)
        self._persist.request_ended(event.id, event.at_ns)

    def _matched(self, event: PrefixMatched) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.num_reused = sum(event.reused.values())
            tree.add(names.SPAN_LOOKUP, event.started_ns, event.at_ns, lookup_attributes(event))
            tree.root.set_attribute(names.CAIRN_STOP_REASON, event.reason)

    def _awaited(self, event: PrefixAwaited) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            waited: Attributes = {names.CAIRN_OWNER: event.owner, names.CAIRN_SHARED_TOKENS: event.num_shared}
            tree.event(names.EVENT_AWAITED, event.at_ns, waited)
            if (owner := self._trees.get(event.owner)) is not None:
                tree.root.add_link(owner.root.get_span_context())

    def _restored(self, event: StateRestored) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.add(names.SPAN_RESTORE, event.started_ns, event.at_ns, restore_attributes(event))

    def _captured(self, event: StateCaptured) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            captured: Attributes = {
                names.CAIRN_NUM_BLOCKS: event.num_blocks,
                names.CAIRN_NUM_SNAPSHOTS: event.num_snapshots,
                names.CAIRN_STATE_SIZE: event.size_bytes,
                names.CAIRN_COMPUTE_TIME: (event.at_ns - event.started_ns) / 1e9,
            }
            tree.event(names.EVENT_CAPTURED, event.at_ns, captured)

    def _seen(self, id: RequestId, at_ns: int) -> SpanTree | None:
        tree = self._trees.get(id)
        if tree is not None:
            tree.last_ns = at_ns
        return tree

    def _abandon(self, id: RequestId, tree: SpanTree) -> None:
        tree.root.set_attribute(names.CAIRN_INCOMPLETE, True)
        tree.end(tree.last_ns)
        self._persist.request_ended(id, tree.last_ns)

    def _offset_ns(self) -> int:
        """The present distance from monotonic to wall time."""
        return self._clock.unix_ns() - self._clock.now_ns()
