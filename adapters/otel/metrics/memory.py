"""Metrics of memory: what is held for what, how far it may go, how short it is, and what was done about it."""

from collections.abc import Iterable, Mapping

from adapters.otel import semconv as names
from adapters.otel.metrics.instruments import Attributes, Instruments
from adapters.otel.metrics.metric_spec import counter, gauge
from application.events.memory import MemoryMeasured, PressureRelieved
from application.services.event_router import Handler
from domain.memory.ledger import MemoryUse

MEMORY_USED = gauge(
    names.CAIRN_MEMORY_USED,
    "By",
    "Memory by purpose: weight, state, live, hot, queued, flight, other; growth and transient are promised; reading is"
    " what was read to be used.",
    names.CAIRN_PURPOSE,
)
MEMORY_LIMIT = gauge(
    names.CAIRN_MEMORY_LIMIT, "By", "What may be held: total, and the marks low, high and hard.", names.CAIRN_MARK
)
MEMORY_LEVEL = gauge(
    names.CAIRN_MEMORY_LEVEL,
    "{level}",
    "Memory pressure: 0 calm, 1 hot tier smaller, 2 admission paused, 3 preempting, 4 refusing.",
)
MEMORY_ACTIONS = counter(
    names.CAIRN_MEMORY_ACTIONS,
    "{action}",
    "What was done about memory: clear_cache, drop_live, shrink_hot, grow_hot, pause, resume, preempt or refuse.",
    names.CAIRN_KIND,
)

METRICS = (
    MEMORY_USED,
    MEMORY_LIMIT,
    MEMORY_LEVEL,
    MEMORY_ACTIONS,
)

_PURPOSES = ("weight", "state", "live", "hot", "queued", "flight", "other", "growth", "transient")
_MARKS = ("total", "low", "high", "hard")


class MemoryMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._ledger: MemoryUse | None = None
        self._level = 0
        instruments.observe(MEMORY_USED, self._read_used)
        instruments.observe(MEMORY_LIMIT, self._read_limits)
        instruments.observe(MEMORY_LEVEL, lambda: [(self._level, {})])

    def handlers(self) -> Mapping[type, Handler]:
        return {MemoryMeasured: self._measured, PressureRelieved: self._relieved}

    def _measured(self, event: MemoryMeasured) -> None:
        self._ledger, self._level = event.ledger, event.level

    def _relieved(self, event: PressureRelieved) -> None:
        self._instruments.add(MEMORY_ACTIONS, 1, {names.CAIRN_KIND: event.kind})

    def _read_used(self) -> Iterable[tuple[float, Attributes]]:
        ledger = self._ledger
        if ledger is None:
            return []
        read = [] if ledger.reading_bytes is None else [(ledger.reading_bytes, {names.CAIRN_PURPOSE: "reading"})]
        return [(getattr(ledger, f"{name}_bytes"), {names.CAIRN_PURPOSE: name}) for name in _PURPOSES] + read

    def _read_limits(self) -> Iterable[tuple[float, Attributes]]:
        limits = self._ledger.limits if self._ledger is not None else None
        if limits is None:
            return []
        return [(getattr(limits, f"{name}_bytes"), {names.CAIRN_MARK: name}) for name in _MARKS]
