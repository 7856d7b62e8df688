"""One request as a tree of spans, grown from events:

    chat {model}                      from RequestQueued to RequestEnded, child of the request's trace context
    ├── queue                         to RequestAdmitted: restoring is not waiting; an event for what it waits for
    ├── prefix lookup                 PrefixMatched; why no more was reused
    ├── restore                       StateRestored
    ├── prefill                       to DecodeStarted, an event for every chunk
    └── decode                        an event for the first token

Who is preempted waits in a queue span again, and has the others once more.

Each span opens with the event that begins it and closes with the event that ends it, or with RequestEnded, in whatever
phase that comes: a tree is always closed. Failures set the status of the request's span and of the phase they happened
in; a cancellation is no error, it shows as the finish reason and as `cairn.ended_in`.

Events carry monotonic times. The distance to wall time is taken once for each request, when it is queued, so that
durations within a trace are exact whatever the wall clock does.

Memory is bounded: past `max_open` requests the oldest tree is closed and marked `cairn.incomplete`. Requests the
sampler leaves out hold nothing. The compute thread only appends to the SDK's batch queue.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from adapters.otel import semconv as names
from adapters.otel.span_attributes import (
    Attributes,
    encodable,
    operation_name,
    request_attributes,
    response_attributes,
)
from application.events import (
    DecodeStarted,
    Event,
    FirstToken,
    PrefillChunkComputed,
    PrefixAwaited,
    PrefixMatched,
    RequestAdmitted,
    RequestEnded,
    RequestPreempted,
    RequestQueued,
    RequestWaits,
    StateCaptured,
    StateRestored,
)
from application.ports.clock import Clock
from application.services.event_router import EventRouter
from domain.ids import RequestId

MAX_OPEN = 16_384
MAX_MESSAGE_CHARS = 1_000


@dataclass(slots=True)
class _Tree:
    """An open request span and the phase span that is open in it. `offset_ns`: from monotonic to wall time."""

    root: Span
    context: Context
    offset_ns: int
    queued_ns: int
    phase: Span
    phase_name: str
    last_ns: int
    num_chunks: int = 0
    num_computed: int = 0
    num_reused: int = 0


class SpanEvents:
    """An EventSink. Other sinks' events, and those of requests that were never seen queued, change nothing."""

    def __init__(self, tracer: Tracer, clock: Clock, max_open: int = MAX_OPEN) -> None:
        self._tracer = tracer
        self._clock = clock
        self._max_open = max_open
        self._trees: OrderedDict[RequestId, _Tree] = OrderedDict()
        self._router = EventRouter(
            "tracing",
            {
                RequestQueued: self._queued,
                RequestWaits: self._waits,
                RequestAdmitted: self._admitted,
                RequestPreempted: self._preempted,
                PrefillChunkComputed: self._computed,
                DecodeStarted: self._decode_started,
                FirstToken: self._first_token,
                RequestEnded: self._ended,
                PrefixMatched: self._matched,
                PrefixAwaited: self._awaited,
                StateRestored: self._restored,
                StateCaptured: self._captured,
            },
        )

    def emit(self, event: Event) -> None:
        self._router.emit(event)

    def failures(self) -> Mapping[str, int]:
        """Events it could not take, by type. Any thread."""
        return self._router.failures()

    def num_open(self) -> int:
        """Requests whose spans are open. Any thread."""
        return len(self._trees)

    def close(self) -> None:
        """End what is open, marked incomplete. Nothing may be emitted any more."""
        while self._trees:
            self._abandon(self._trees.popitem(last=False)[1])

    def _queued(self, event: RequestQueued) -> None:
        offset_ns = self._clock.unix_ns() - self._clock.now_ns()
        start_ns = event.at_ns + offset_ns
        root = self._tracer.start_span(
            f"{operation_name(is_chat=event.is_chat)} {encodable(event.model)}",
            propagate.extract(event.trace_carrier, Context()),
            SpanKind.INTERNAL,
            request_attributes(event),
            start_time=start_ns,
        )
        if not root.is_recording():
            return
        context = set_span_in_context(root, Context())
        phase = self._tracer.start_span(names.SPAN_QUEUE, context, start_time=start_ns)
        if (replaced := self._trees.pop(event.id, None)) is not None:
            self._abandon(replaced)
        self._trees[event.id] = _Tree(
            root, context, offset_ns, event.at_ns, phase, names.SPAN_QUEUE, last_ns=event.at_ns
        )
        if len(self._trees) > self._max_open:
            self._abandon(self._trees.popitem(last=False)[1])

    def _waits(self, event: RequestWaits) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.phase.add_event(names.EVENT_WAITS, {names.CAIRN_REASON: event.reason}, event.at_ns + tree.offset_ns)

    def _admitted(self, event: RequestAdmitted) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            self._enter(tree, names.SPAN_PREFILL, event.at_ns)

    def _preempted(self, event: RequestPreempted) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            self._enter(tree, names.SPAN_QUEUE, event.at_ns)

    def _computed(self, event: PrefillChunkComputed) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is None:
            return
        tree.num_chunks += 1
        tree.num_computed += event.end - event.start
        attributes: Attributes = {
            names.CAIRN_CHUNK_START: event.start,
            names.CAIRN_CHUNK_END: event.end,
            names.CAIRN_CHUNK_DURATION: (event.at_ns - event.started_ns) / 1e9,
        }
        tree.phase.add_event(names.EVENT_CHUNK, attributes, event.at_ns + tree.offset_ns)

    def _decode_started(self, event: DecodeStarted) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            self._enter(tree, names.SPAN_DECODE, event.at_ns)

    def _first_token(self, event: FirstToken) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            seconds = (event.at_ns - tree.queued_ns) / 1e9
            tree.root.set_attribute(names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK, seconds)
            tree.phase.add_event(names.EVENT_FIRST_TOKEN, None, event.at_ns + tree.offset_ns)

    def _ended(self, event: RequestEnded) -> None:
        tree = self._trees.pop(event.id, None)
        if tree is None:
            return
        if event.error_code is not None:
            status = Status(StatusCode.ERROR, encodable(event.error_message, MAX_MESSAGE_CHARS) or event.error_code)
            for span in (tree.phase, tree.root):
                span.set_status(status)
            tree.phase.set_attribute(names.ERROR_TYPE, event.error_code)
        if tree.phase_name == names.SPAN_DECODE:
            tree.phase.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, event.usage.completion_tokens)
        tree.root.set_attributes({**response_attributes(event), names.CAIRN_ENDED_IN: tree.phase_name})
        self._leave(tree, event.at_ns)
        tree.root.end(event.at_ns + tree.offset_ns)

    def _matched(self, event: PrefixMatched) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            tree.num_reused = sum(event.reused.values())
            attributes: Attributes = {
                **{name: event.reused.get(tier, 0) for tier, name in names.CAIRN_TIER_TOKENS.items()},
                names.CAIRN_KNOWN_TOKENS: event.num_known,
                names.CAIRN_STOP_REASON: event.reason,
            }
            if event.diverged_at is not None:
                attributes[names.CAIRN_DIVERGED_AT] = event.diverged_at
            self._add_span(tree, names.SPAN_LOOKUP, event.started_ns, event.at_ns, attributes)
            tree.root.set_attribute(names.CAIRN_STOP_REASON, event.reason)

    def _awaited(self, event: PrefixAwaited) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            attributes: Attributes = {names.CAIRN_OWNER: event.owner, names.CAIRN_SHARED_TOKENS: event.num_shared}
            tree.phase.add_event(names.EVENT_AWAITED, attributes, event.at_ns + tree.offset_ns)
            if (owner := self._trees.get(event.owner)) is not None:
                tree.root.add_link(owner.root.get_span_context())

    def _restored(self, event: StateRestored) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            attributes: Attributes = {
                names.CAIRN_POSITION: event.position,
                names.CAIRN_STATE_SIZE: event.size_bytes,
                names.CAIRN_COMPUTE_TIME: (event.at_ns - event.fetched_ns) / 1e9,
            }
            self._add_span(tree, names.SPAN_RESTORE, event.started_ns, event.at_ns, attributes)

    def _captured(self, event: StateCaptured) -> None:
        if (tree := self._seen(event.id, event.at_ns)) is not None:
            attributes: Attributes = {
                names.CAIRN_NUM_BLOCKS: event.num_blocks,
                names.CAIRN_NUM_SNAPSHOTS: event.num_snapshots,
                names.CAIRN_STATE_SIZE: event.size_bytes,
                names.CAIRN_COMPUTE_TIME: (event.at_ns - event.started_ns) / 1e9,
            }
            tree.phase.add_event(names.EVENT_CAPTURED, attributes, event.at_ns + tree.offset_ns)

    def _add_span(self, tree: _Tree, name: str, started_ns: int, ended_ns: int, attributes: Attributes) -> None:
        """A span that is over when it is told of."""
        span = self._tracer.start_span(
            name, tree.context, attributes=attributes, start_time=started_ns + tree.offset_ns
        )
        span.end(ended_ns + tree.offset_ns)

    def _enter(self, tree: _Tree, name: str, at_ns: int, attributes: Attributes | None = None) -> None:
        self._leave(tree, at_ns)
        tree.phase = self._tracer.start_span(
            name, tree.context, attributes=attributes, start_time=at_ns + tree.offset_ns
        )
        tree.phase_name = name
        tree.num_chunks = tree.num_computed = 0

    def _leave(self, tree: _Tree, at_ns: int) -> None:
        if tree.phase_name == names.SPAN_PREFILL:
            tree.phase.set_attribute(names.CAIRN_CHUNKS, tree.num_chunks)
            tree.phase.set_attribute(names.CAIRN_COMPUTED_TOKENS, tree.num_computed)
            tree.phase.set_attribute(names.CAIRN_REUSED_TOKENS, tree.num_reused)
        tree.phase.end(at_ns + tree.offset_ns)

    def _seen(self, id: RequestId, at_ns: int) -> _Tree | None:
        tree = self._trees.get(id)
        if tree is not None:
            tree.last_ns = at_ns
        return tree

    def _abandon(self, tree: _Tree) -> None:
        tree.root.set_attributes({names.CAIRN_INCOMPLETE: True, names.CAIRN_ENDED_IN: tree.phase_name})
        self._leave(tree, tree.last_ns)
        tree.root.end(tree.last_ns + tree.offset_ns)


__all__ = ("MAX_OPEN", "SpanEvents")
