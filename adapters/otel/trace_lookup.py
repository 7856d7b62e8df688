"""Which trace a request belongs to, for metrics and log lines that point to it."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import get_current_span

from domain.ids import RequestId

TraceLookup: TypeAlias = Callable[[RequestId], Context | None]
"""The context of an open request's span; None where there is none, or it is not sampled. Any thread."""


def no_trace(_id: RequestId) -> Context | None:
    """Where nothing is traced."""
    return None


def ids_of(trace: Context | None) -> Mapping[str, str]:
    """`trace_id` and `span_id` in hexadecimal, as log lines have them; empty without a trace."""
    context = get_current_span(trace).get_span_context() if trace is not None else None
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
