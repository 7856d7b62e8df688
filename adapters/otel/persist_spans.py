"""The persist span of a request: its records on their way to the store, in a trace of its own with a link to the
request.

    request   ├── prefill ── decode ──┤ ended
    offered      ▲    ▲    ▲          ▲
    persist      ├── stored ── stored ──── dropped ── stored ┤

It begins with the first records that are offered and ends with the last of them, which may be long after the request;
therefore it is not part of the tree of the request. A request without records has no such span.

Memory is bounded by the open requests, and after their end by number and by time; a span that is ended by the bound is
marked incomplete. No event reports records that were deleted while they waited, so their span ends that way too.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Tracer

from adapters.otel import semconv as names
from adapters.otel.span_attributes import Attributes, encodable
from adapters.otel.span_tree import SpanTree
from application.events import RecordsDropped, RecordsOffered, RecordsPersisted
from application.services.event_sinks import Handler
from domain.ids import RequestId

MAX_PATIENCE_S = 600.0


@dataclass(slots=True)
class _Records:
    """The records of one request. `num_pending`: records that were offered and are not settled; negative for a moment
    if a worker reports first."""

    link: Link
    offset_ns: int
    first_ns: int | None = None
    last_ns: int = 0
    ended_ns: int = 0
    num_pending: int = 0
    num_persisted: int = 0
    raw_bytes: int = 0
    max_lag_ns: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])


class PersistSpans:
    """The open persist spans. One caller at a time."""

    def __init__(self, tracer: Tracer, max_open: int) -> None:
        self._tracer = tracer
        self._max_open = max_open
        self._open: dict[RequestId, _Records] = {}
        self._ended: OrderedDict[RequestId, _Records] = OrderedDict()

    def handlers(self) -> Mapping[type, Handler]:
        return {RecordsOffered: self._offered, RecordsPersisted: self._persisted, RecordsDropped: self._dropped}

    @property
    def num_open(self) -> int:
        """Requests that may still emit events."""
        return len(self._open) + len(self._ended)

    def begin(self, id: RequestId, tree: SpanTree) -> None:
        """Start counting for a traced request that was queued."""
        self._open[id] = _Records(Link(tree.root.get_span_context()), tree.offset_ns)

    def request_ended(self, id: RequestId, at_ns: int) -> None:
        """The request offers no more records."""
        left = self._open.pop(id, None)
        if left is not None:
            self._ended[id] = left
            left.ended_ns = at_ns
            self._finish(id)
        while self._ended and (len(self._ended) > self._max_open or self._is_overdue(at_ns)):
            self._end(*self._ended.popitem(last=False))

    def close(self) -> None:
        """End the spans of records that are still pending."""
        for id, left in (*self._ended.items(), *self._open.items()):
            self._end(id, left)
        self._ended.clear()
        self._open.clear()

    def _offered(self, event: RecordsOffered) -> None:
        self._note(event.id, event.at_ns, event.num_records)
        self._finish(event.id)

    def _persisted(self, event: RecordsPersisted) -> None:
        if (left := self._note(event.id, event.at_ns, -event.num_records)) is not None:
            left.num_persisted += event.num_records
            left.raw_bytes += event.raw_bytes
            left.max_lag_ns = max(left.max_lag_ns, event.at_ns - (event.offered_ns or event.started_ns))
            self._finish(event.id)

    def _dropped(self, event: RecordsDropped) -> None:
        num_settled = event.num_records if event.was_offered else 0
        if (left := self._note(event.id, event.at_ns, -num_settled)) is not None:
            left.dropped[event.reason] += event.num_records
            self._finish(event.id)

    def _note(self, id: RequestId, at_ns: int, num_pending: int) -> _Records | None:
        left = self._open.get(id) or self._ended.get(id)
        if left is not None:
            left.num_pending += num_pending
            left.first_ns = at_ns if left.first_ns is None else min(left.first_ns, at_ns)
            left.last_ns = max(left.last_ns, at_ns)
        return left

    def _is_overdue(self, at_ns: int) -> bool:
        oldest = next(iter(self._ended.values()))
        return (at_ns - oldest.ended_ns) / 1e9 > MAX_PATIENCE_S

    def _finish(self, id: RequestId) -> None:
        """Emit the span if the request has ended and nothing is pending."""
        left = self._ended.get(id)
        if left is not None and not left.num_pending:
            del self._ended[id]
            self._end(id, left)

    def _end(self, id: RequestId, left: _Records) -> None:
        if left.first_ns is None:
            return
        attributes: Attributes = {
            names.GEN_AI_RESPONSE_ID: encodable(id),
            names.CAIRN_RECORDS_PERSISTED: left.num_persisted,
            names.CAIRN_RECORDS_DROPPED: sum(left.dropped.values()),
            names.CAIRN_STATE_SIZE: left.raw_bytes,
            names.CAIRN_PERSIST_LAG: left.max_lag_ns / 1e9,
        }
        if left.num_pending:
            attributes[names.CAIRN_INCOMPLETE] = True
        start_ns = left.first_ns + left.offset_ns
        span = self._tracer.start_span(
            names.SPAN_PERSIST, Context(), SpanKind.INTERNAL, attributes, [left.link], start_ns
        )
        for reason, num_records in left.dropped.items():
            dropped: Attributes = {names.CAIRN_REASON: reason, names.CAIRN_RECORDS_DROPPED: num_records}
            span.add_event(names.EVENT_DROPPED, dropped, left.last_ns + left.offset_ns)
        span.end(left.last_ns + left.offset_ns)
