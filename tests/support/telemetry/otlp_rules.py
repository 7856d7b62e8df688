"""Checks of exported data against the OTLP specification and the data models."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_METRIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,254}")
_MAX_UNIT_CHARS = 63


def problems_of_traces(request: ExportTraceServiceRequest) -> Iterator[str]:
    yield from _unknown(request)
    for part in request.resource_spans:
        yield from _resource(part.resource)
        for scope in part.scope_spans:
            for span in scope.spans:
                yield from _span(span)


def problems_of_metrics(request: ExportMetricsServiceRequest) -> Iterator[str]:
    yield from _unknown(request)
    for part in request.resource_metrics:
        yield from _resource(part.resource)
        for scope in part.scope_metrics:
            names = [metric.name for metric in scope.metrics]
            yield from (f"metric {name} comes twice" for name in set(names) if names.count(name) > 1)
            for metric in scope.metrics:
                yield from _metric(metric)


def _resource(resource: Any) -> Iterator[str]:
    yield from _attributes("resource", resource.attributes)
    if not any(item.key == "service.name" for item in resource.attributes):
        yield "a resource has no service.name"


def _span(span: Any) -> Iterator[str]:
    where = f"span {span.name}"
    if not span.name:
        yield "a span has no name"
    yield from _id(f"{where}: trace_id", span.trace_id, 16)
    yield from _id(f"{where}: span_id", span.span_id, 8)
    if span.parent_span_id:
        yield from _id(f"{where}: parent_span_id", span.parent_span_id, 8)
    if not 1 <= span.kind <= 5:
        yield f"{where}: kind {span.kind}"
    if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano:
        yield f"{where}: from {span.start_time_unix_nano} to {span.end_time_unix_nano}"
    if span.status.message and span.status.code != 2:
        yield f"{where}: a status that is no error has a message"
    yield from _attributes(where, span.attributes)
    for event in span.events:
        if not event.name or not event.time_unix_nano:
            yield f"{where}: an event lacks its name or time"
        yield from _attributes(f"{where}: event {event.name}", event.attributes)
    for link in span.links:
        yield from _id(f"{where}: a link's trace_id", link.trace_id, 16)
        yield from _id(f"{where}: a link's span_id", link.span_id, 8)
        yield from _attributes(f"{where}: a link", link.attributes)


def _metric(metric: Any) -> Iterator[str]:
    where = f"metric {metric.name}"
    if not _METRIC_NAME.fullmatch(metric.name):
        yield f"{where}: not a name"
    if len(metric.unit) > _MAX_UNIT_CHARS:
        yield f"{where}: its unit is long"
    kind = metric.WhichOneof("data")
    if kind is None:
        yield f"{where}: no data"
        return
    data = getattr(metric, kind)
    if kind in {"sum", "histogram"} and data.aggregation_temporality not in (1, 2):
        yield f"{where}: no temporality"
    if not data.data_points:
        yield f"{where}: no points"
    seen: set[Any] = set()
    for point in data.data_points:
        yield from _attributes(where, point.attributes)
        key = frozenset((item.key, item.value.SerializeToString()) for item in point.attributes)
        if key in seen:
            yield f"{where}: two points have the same attributes"
        seen.add(key)
        if not point.time_unix_nano or point.start_time_unix_nano > point.time_unix_nano:
            yield f"{where}: from {point.start_time_unix_nano} to {point.time_unix_nano}"
        yield from _histogram_point(where, point) if kind == "histogram" else _number_point(where, point)
        for exemplar in point.exemplars:
            yield from _exemplar(where, exemplar)


def _histogram_point(where: str, point: Any) -> Iterator[str]:
    bounds = list(point.explicit_bounds)
    if len(point.bucket_counts) != len(bounds) + 1:
        yield f"{where}: {len(point.bucket_counts)} buckets for {len(bounds)} bounds"
    if any(left >= right for left, right in pairwise(bounds)):
        yield f"{where}: its bounds do not rise"
    if sum(point.bucket_counts) != point.count:
        yield f"{where}: its buckets hold {sum(point.bucket_counts)} of {point.count}"
    extremes = [value for name in ("min", "max") if point.HasField(name) for value in [getattr(point, name)]]
    if not all(map(math.isfinite, [point.sum, *extremes])):
        yield f"{where}: not a number"


def _number_point(where: str, point: Any) -> Iterator[str]:
    kind = point.WhichOneof("value")
    if kind is None or not math.isfinite(getattr(point, kind)):
        yield f"{where}: a point without a value"


def _exemplar(where: str, exemplar: Any) -> Iterator[str]:
    if exemplar.WhichOneof("value") is None or not exemplar.time_unix_nano:
        yield f"{where}: an exemplar lacks its value or time"
    yield from _id(f"{where}: an exemplar's trace_id", exemplar.trace_id, 16)
    yield from _id(f"{where}: an exemplar's span_id", exemplar.span_id, 8)


def _attributes(where: str, attributes: Sequence[Any]) -> Iterator[str]:
    keys = [item.key for item in attributes]
    yield from (f"{where}: attribute {key} comes twice" for key in set(keys) if keys.count(key) > 1)
    for item in attributes:
        if not item.key:
            yield f"{where}: an attribute without a key"
        if item.value.WhichOneof("value") is None:
            yield f"{where}: attribute {item.key} without a value"


def _id(where: str, id: bytes, size: int) -> Iterator[str]:
    if len(id) != size or not any(id):
        yield f"{where} is {id.hex() or 'empty'}"


def _unknown(message: Message) -> Iterator[str]:
    """Fields that the protocol does not have, at any depth."""
    if len(UnknownFieldSet(message)):
        yield f"{message.DESCRIPTOR.name}: unknown fields"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            below: Iterable[Any] = value if isinstance(value, Iterable) else [value]
            for one in below:
                yield from _unknown(one)
