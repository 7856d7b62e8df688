"""A reading laid out for a terminal of any width: lines that are cut, never wrapped, and as many requests as fit.

Whatever a client chose (names of models, ids) is shown harmless. Colour says nothing that words do not.
"""

from collections.abc import Iterable, Iterator, Mapping

from rich.text import Text

from domain.byte_size import format_bytes
from domain.shown import shown
from interfaces.cli.pace import told_latency, told_time
from interfaces.cli.top.reading import Reading
from interfaces.cli.top.requests_table import request_lines
from interfaces.http.admin.figures_body import LatencyBody, ReuseBody
from interfaces.http.admin.overview import OverviewBody
from interfaces.http.engine_body import EngineBody
from interfaces.http.memory_body import MemoryBody
from interfaces.http.tier_bodies import TiersBody

LABEL_WIDTH = 10
GAUGE_WIDTH = 16
MAX_CHARS = 1000
"""Of a line, before it is cut to the terminal's width."""

STALE_S = 10.0
"""Tiers that were read longer ago are said to be: their store does not answer."""


def head(overview: OverviewBody, url: str) -> Iterator[Text]:
    """What the server is, what it does, and what it holds."""
    health = overview.health
    is_ready = health.status == "ready"
    state = Text(health.status, "green" if is_ready else "bold red")
    if health.problem:
        state.append(f" ({shown(health.problem)})")
    models = ", ".join(shown(model) for model in health.models) or "no model loaded"
    up = f"  up {told_time(overview.uptime_s)}"
    yield Text.assemble((f"cairn {overview.version} ", "bold"), f"{url}  ", state, up)
    yield _line("models", models)
    yield _engine(health.engine)
    yield _line("requests", _requests(overview))
    figures = overview.figures
    yield _line("TTFT", _latency(figures.ttft))
    yield _line("per token", _latency(figures.itl))
    yield _line("tokens/s", _rates(figures.tokens_per_s))
    yield _line("reused", ", ".join(_reuse(one) for one in figures.reuse))
    if overview.memory is not None:
        yield from _memory(overview.memory)
    if overview.tiers is not None:
        yield from _tiers(overview.tiers, overview.tiers_age_s or 0.0)


def _engine(engine: EngineBody) -> Text:
    if engine.status == "ok":
        return _line("engine", f"last step {told_latency(engine.last_step_age_s)} ago", engine.doing)
    why = f" in {shown(engine.stuck_in)} for {told_time(engine.stuck_s)}" if engine.stuck_in else ""
    whose = f": {', '.join(shown(id) for id in engine.requests)}" if engine.requests else ""
    return Text.assemble((f"{'engine':<{LABEL_WIDTH}}", "bold"), (f"{engine.status}{why}{whose}", "bold red"))


def _requests(overview: OverviewBody) -> str:
    counts = overview.requests
    reasons = ", ".join(f"{count} for {reason}" for reason, count in counts.waiting_for.items() if count)
    why = f" ({reasons})" if reasons else ""
    return f"{counts.running} running, {counts.waiting} waiting{why}; at most {counts.queue_limit} wait"


def _latency(found: LatencyBody) -> str:
    if not found.count:
        return f"n/a in the last {_minutes(found.window_s)}"
    values = zip(("p50", "p90", "p99"), (found.p50_s, found.p90_s, found.p99_s), strict=True)
    told = "  ".join(f"{name} {told_latency(value)}" for name, value in values if value is not None)
    return f"{told}  ({found.count:,} in {_minutes(found.window_s)})"


def _rates(rates: Mapping[str, float]) -> str:
    """Output first: it is what people watch."""
    names = sorted(rates, key=lambda name: name != "output")
    return "  ".join(f"{name} {rates[name]:,.0f}" for name in names) or "n/a"


def _reuse(found: ReuseBody) -> str:
    window = _minutes(found.window_s)
    if found.hit_rate is None:
        return f"{window} n/a"
    parts = "+".join(f"{share:.0%} {tier}" for tier, share in found.hit_rate.items() if share)
    return f"{window} {parts or '0%'}"


def _minutes(window_s: int) -> str:
    return f"{window_s // 60}m"


def _memory(memory: MemoryBody) -> Iterator[Text]:
    held = memory.held
    purposes = {
        "weights": held.weights,
        "states": held.states,
        "hot tier": held.hot,
        "to store": held.queued,
        "fetched": held.in_flight,
        "other": held.other,
    }
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in purposes.items() if size)
    total = memory.limits.total_bytes if memory.limits is not None else None
    yield _line("memory", _gauge(memory.used_bytes, total), memory.pressure)
    if parts:
        yield _line("", parts)


def _tiers(tiers: TiersBody, age_s: float) -> Iterator[Text]:
    hot, store, queue = tiers.hot, tiers.store, tiers.queue
    yield _line("hot tier", _gauge(hot.used_bytes, hot.budget_bytes), _records(hot.blocks, hot.snapshots))
    if store is not None:
        faults = ", ".join(f"{count} {kind}" for kind, count in store.faults.items())
        old = f"read {told_time(age_s)} ago" if age_s > STALE_S else ""
        blocks, snapshots = sum(one.blocks for one in store.models), sum(one.snapshots for one in store.models)
        problem = f"faults: {faults}" if faults else ""
        gauge = _gauge(store.stored_bytes, store.quota_bytes)
        yield _line("store", gauge, _records(blocks, snapshots), problem, old)
    elif tiers.problem:
        yield _line("store", shown(tiers.problem))
    if queue is not None and (queue.queued or queue.dropped):
        dropped = ", ".join(f"{count} {reason}" for reason, count in queue.dropped.items())
        yield _line(
            "writing",
            f"{queue.queued:,} records, {format_bytes(queue.queued_bytes)}, {queue.lag_s:.1f} s behind",
            f"not stored: {dropped}" if dropped else "",
        )


def _records(blocks: int, snapshots: int) -> str:
    return f"{blocks:,} blocks, {snapshots:,} snapshots"


def _gauge(used: int, total: int | None) -> str:
    if not total:
        return format_bytes(used)
    filled = min(GAUGE_WIDTH, max(0, round(GAUGE_WIDTH * used / total)))
    bar = "#" * filled + "." * (GAUGE_WIDTH - filled)
    return f"[{bar}] {format_bytes(used)} of {format_bytes(total)}"


def _line(label: str, *parts: str) -> Text:
    return Text.assemble((f"{label:<{LABEL_WIDTH}}", "bold"), "  ".join(part for part in parts if part))


def fitted(lines: Iterable[Text], width: int) -> Iterator[Text]:
    """Cut to the terminal's width, and nothing in them is a control code, whoever chose it."""
    for line in lines:
        cut = line.copy()
        cut.plain = shown(cut.plain, MAX_CHARS)
        cut.truncate(max(1, width), overflow="ellipsis")
        yield cut


def frame(reading: Reading, url: str, width: int, height: int | None) -> list[Text]:
    """`height`: lines there are, None for as many as it takes. Open requests come before ended ones."""
    lines = list(head(reading.overview, url))
    room = None if height is None else max(0, height - len(lines) - 1)
    lines += [Text(), *request_lines(reading.requests, width, room)]
    return list(fitted(lines, width))


__all__ = ("fitted", "frame", "head")
