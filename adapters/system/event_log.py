"""The log of the server, written from events: requests under `cairn.requests`, models and faults under `cairn.engine`.

A fault that recurs is logged at its 1st, 2nd, 4th, 8th ... occurrence. Lines are written by a thread of their own,
because a handler may block (a full pipe, a stopped terminal). The queue in between is bounded; lines that it cannot
take are counted, and the count is logged when there is room again.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

from adapters.system.request_summary import one_line, request_fields, summarise
from application.events import (
    EngineRecovered,
    EngineRestarted,
    EngineStuck,
    FaultObserved,
    HttpRefused,
    ModelLoaded,
    ModelUnloaded,
    RecordsDropped,
    RequestEnded,
    RequestRefused,
    StoreFault,
    StoreOpened,
)
from application.services.event_sinks import EventRouter
from application.services.request_timelines import RequestTimelines
from domain.errors import DomainError, ModelLoadFailed, ModelsBusy, QueueFull, ServerUnavailable
from domain.health.engine_health import ENDED
from domain.ids import RequestId
from domain.printable import printable

_OUR_FAULT = frozenset(error.code for error in (QueueFull, ModelsBusy, ServerUnavailable, ModelLoadFailed, DomainError))

_requests = logging.getLogger("cairn.requests")
_engine = logging.getLogger("cairn.engine")


_Fields: TypeAlias = Mapping[str, str | int | float]
_Line: TypeAlias = tuple[logging.Logger, int, str, _Fields]


class LogWriter:
    """A thread that writes log lines. `write` may be called from any thread and never blocks or raises; `close` is
    idempotent."""

    def __init__(self, max_lines: int = 8_192) -> None:
        self._queue: queue.Queue[_Line | None] = queue.Queue(max_lines)
        self._num_lost = 0
        self._thread = threading.Thread(target=self._run, name="cairn-log-writer", daemon=True)
        self._thread.start()

    def write(self, logger: logging.Logger, level: int, line: str, fields: _Fields | None = None) -> None:
        """Queue a line. `fields`: what it says, by name, for machines."""
        if not logger.isEnabledFor(level):
            return
        try:
            self._queue.put_nowait((logger, level, line, fields or {}))
        except queue.Full:
            self._num_lost += 1

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued and end the thread; waits about `timeout_s` seconds at most."""
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=timeout_s)
            except queue.Full:
                return
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            logger, level, line, fields = entry
            try:
                logger.log(level, "%s", line, extra={"cairn_fields": fields})
                if self._num_lost:
                    lost, self._num_lost = self._num_lost, 0
                    logger.warning("%d lines were not logged: the log is slower than the server", lost)
            except Exception:  # a handler with a defect must not end all logging
                self._num_lost += 1


class EventLog(EventRouter):
    """The event sink that writes the log. `timelines` takes each event before it. `trace_ids` gives the `trace_id`
    of an open request, empty if it is not traced. `close` writes the queue and ends the thread;
    idempotent."""

    def __init__(
        self, timelines: RequestTimelines, trace_ids: Callable[[RequestId], Mapping[str, str]] = lambda _id: {}
    ) -> None:
        self._timelines = timelines
        self._trace_ids = trace_ids
        self._occurrences: Counter[str] = Counter()
        self._writer = LogWriter()
        super().__init__(
            "the request log",
            {
                RequestEnded: self._ended,
                RequestRefused: self._refused,
                HttpRefused: self._http_refused,
                ModelLoaded: self._loaded,
                ModelUnloaded: self._unloaded,
                FaultObserved: self._fault,
                StoreFault: self._store_fault,
                StoreOpened: self._store_opened,
                RecordsDropped: self._dropped,
                EngineStuck: self._stuck,
                EngineRecovered: self._recovered,
                EngineRestarted: self._restarted,
            },
        )

    def close(self) -> None:
        self._writer.close()

    def _ended(self, event: RequestEnded) -> None:
        if event.parsing is not None and event.parsing.problems:
            problems = ",".join(event.parsing.problems)
            fields = {"request": event.id, "tool_call_problems": problems}
            self._writer.write(_requests, logging.WARNING, summarise(fields), fields)
        timeline = self._timelines.of(event.id)
        if timeline is not None and timeline.ended is event:
            level = logging.INFO if event.error_code is None else logging.WARNING
            trace_id = self._trace_ids(event.id).get("trace_id")
            found = request_fields(timeline, event, trace_id)
            self._writer.write(_requests, level, summarise(found), found)

    def _refused(self, event: RequestRefused) -> None:
        level = logging.WARNING if event.error_code in _OUR_FAULT else logging.INFO
        fields = {"model": printable(event.model), "error": event.error_code}
        line = f"request refused model='{fields['model']}' error={event.error_code}"
        self._writer.write(_requests, level, line, fields)

    def _http_refused(self, event: HttpRefused) -> None:
        self._write_sparsely(logging.WARNING, f"refused: {event.reason}", event.detail)

    def _loaded(self, event: ModelLoaded) -> None:
        line = (
            f"model {event.id} loaded in {event.duration_ns / 1e9:.1f}s"
            f" weights={event.weight_bytes / 2**20:.0f}MiB memory={event.active_bytes / 2**20:.0f}MiB"
            f" decode={event.decode_mode}"
        )
        self._writer.write(_engine, logging.INFO, f"{line} ({event.note})" if event.note else line)

    def _unloaded(self, event: ModelUnloaded) -> None:
        self._writer.write(
            _engine, logging.INFO, f"model {event.id} unloaded memory={event.active_bytes / 2**20:.0f}MiB"
        )

    def _fault(self, event: FaultObserved) -> None:
        self._write_sparsely(logging.ERROR, f"fault in {event.where}", event.message)

    def _store_fault(self, event: StoreFault) -> None:
        self._write_sparsely(logging.ERROR, f"fault in store: {event.kind}", event.message)

    def _store_opened(self, event: StoreOpened) -> None:
        line = f"the store was opened after {event.waited_ns / 1e9:.0f}s; new prefixes are stored from now on"
        self._writer.write(_engine, logging.WARNING, line)

    def _dropped(self, event: RecordsDropped) -> None:
        self._write_sparsely(logging.WARNING, f"records not stored: {event.reason}", f"{event.num_records} records")

    def _stuck(self, event: EngineStuck) -> None:
        """Writes a line, then the stack with a line a frame."""
        stuck_s, still = (event.at_ns - event.since_ns) / 1e9, "" if event.is_first else "still "
        what = "without an engine" if event.stuck_in == ENDED else f"stuck in {event.stuck_in}"
        line = (
            f"{still}{what} for {stuck_s:.0f}s: waiting={event.num_waiting}"
            f" running={event.num_running} calls={event.num_calls} requests={','.join(event.request_ids) or 'none'}"
        )
        for text in (line, *event.stack.splitlines()):
            self._writer.write(_engine, logging.ERROR, text)

    def _recovered(self, event: EngineRecovered) -> None:
        what = "there is an engine again" if event.stuck_in == ENDED else f"{event.stuck_in} is stuck no longer"
        self._writer.write(_engine, logging.WARNING, f"{what}, after {event.stuck_ns / 1e9:.0f}s")

    def _restarted(self, event: EngineRestarted) -> None:
        line = f"another engine took over after {event.down_ns / 1e9:.1f}s, with {event.num_resumed} choices"
        self._writer.write(_engine, logging.WARNING, f"{line} (try {event.num_tries}): {one_line(event.why)}")

    def _write_sparsely(self, level: int, what: str, detail: str) -> None:
        self._occurrences[what] += 1
        count = self._occurrences[what]
        if count & (count - 1) == 0:
            self._writer.write(_engine, level, f"{what} (occurrence {count}): {one_line(detail)}")
