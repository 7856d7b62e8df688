"""The screen of `cairn status`, read from the admin API of a server.

Models, requests, latencies, reuse, memory and tiers, then the open requests and the last that ended. A part that the
server has not answered yet is a line that says for how long it has been awaited. Every line is cut to the terminal's
width, and names that a client chose are printed without control codes.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from rich.text import Text

from domain.byte_size import format_bytes
from domain.printable import printable
from interfaces.cli.client.running_server import RunningServer
from interfaces.cli.terminal.progress import format_latency, format_time
from interfaces.http.native.admin import LatencyBody, OverviewBody, ReuseBody, SavedBody
from interfaces.http.native.bodies import MemoryBody, TiersBody, data_of
from interfaces.http.native.health import EngineBody
from interfaces.http.native.requests import RequestBody, RequestListBody

TICK_S = 1.0
"""The interval in which what is known is shown while the rest is awaited."""

NUM_ENDED = 10
LABEL_WIDTH = 10
MAX_CHARS = 1000
"""The bound on a line, before it is cut to the terminal's width."""

_PURPOSES = {"hot": "hot tier", "queued": "to store", "in_flight": "fetched"}
"""Words for purposes of memory whose names do not say enough."""

STALE_S = 10.0
"""The age from which readings of the tiers are marked as old."""


_Body = TypeVar("_Body")


@dataclass(frozen=True, slots=True)
class Status:
    """The answers of the admin API that the screen shows; None: awaited. `overview_s`, `requests_s`: the seconds since
    each was read, or since it was asked for."""

    overview: OverviewBody | None = None
    requests: RequestListBody | None = None
    overview_s: float = 0.0
    requests_s: float = 0.0


async def read(
    server: RunningServer,
    timeout_s: float | None = None,
    show: Callable[[Status], None] = lambda _: None,
    tick_s: float = TICK_S,
) -> Status:
    """Asks the server for all parts at once. `show` gets what is known every `tick_s`, until all are. `timeout_s`: the
    longest wait; None: no limit. Raises NoAnswer."""
    now_s = asyncio.get_running_loop().time
    began_s = now_s()

    async def ask(path: str, body: type[_Body]) -> tuple[_Body, float]:
        return server.understood(await server.ask(path, timeout_s=timeout_s), body), now_s()

    overview = asyncio.create_task(ask("/admin/api/overview", OverviewBody))
    requests = asyncio.create_task(ask(f"/admin/api/requests?ended={NUM_ENDED}", RequestListBody))
    try:
        while True:
            _, awaited = await asyncio.wait({overview, requests}, timeout=tick_s, return_when=asyncio.FIRST_EXCEPTION)
            head, head_s = overview.result() if overview.done() else (None, began_s)
            table, table_s = requests.result() if requests.done() else (None, began_s)
            found = Status(head, table, now_s() - head_s, now_s() - table_s)
            if not awaited:
                return found
            show(found)
    finally:
        overview.cancel()
        requests.cancel()
        await asyncio.gather(overview, requests, return_exceptions=True)


def lines(found: Status, url: str, width: int, height: int | None = None) -> list[Text]:
    """Returns the screen, each line cut to `width` columns. `height`: the most lines; None for all."""
    head = None if found.overview is None else _head(found.overview, url)
    table = None if found.requests is None else _requests_table(found.requests)
    texts = [
        *_part("overview", head, url, found.overview_s),
        Text(),
        *_part("requests", table, url, found.requests_s),
    ]
    if height is not None and len(texts) > (most := max(1, height - 1)):
        texts = [*texts[:most], Text(f"{len(texts) - most} lines more; --json has them all", "dim")]
    return [_fitted(text, width) for text in texts]


def _part(name: str, texts: Iterable[Text] | None, url: str, seconds: float) -> Iterator[Text]:
    """The lines of a part, with their age unless they are new; None: of one that is awaited."""
    if texts is None:
        yield _line(name, f"{url} has not answered for {format_time(seconds)}; Ctrl-C ends the wait")
        return
    yield from texts
    if seconds >= TICK_S:
        yield Text(f"read {format_time(seconds)} ago", "dim")


def _fitted(line: Text, width: int) -> Text:
    cut = line.copy()
    cut.plain = printable(cut.plain, MAX_CHARS)
    cut.truncate(max(1, width), overflow="ellipsis")
    return cut


def _head(overview: OverviewBody, url: str) -> Iterator[Text]:
    """The lines about the server, its load and its memory."""
    health = overview.health
    is_ready = health.status == "ready"
    state = Text(health.status, "green" if is_ready else "bold red")
    if health.problem:
        state.append(f" ({printable(health.problem)})")
    models = ", ".join(printable(model) for model in health.models) or "no model loaded"
    up = f"  up {format_time(overview.uptime_s)}"
    yield Text.assemble((f"cairn {overview.version} ", "bold"), f"{url}  ", state, up)
    yield _line("models", models)
    yield _line("pages", f"{url}/chat to talk to it, {url}/admin to watch it")
    yield _engine(health.engine)
    yield _line("requests", _requests(overview))
    figures = overview.figures
    yield _line("TTFT", _latency(figures.ttft))
    yield _line("per token", _latency(figures.itl))
    yield _line("tokens/s", _rates(figures.tokens_per_s))
    yield _line("reused", ", ".join(_reuse(one) for one in figures.reuse))
    if figures.saved is not None:
        yield _line("saved", *_saved(figures.saved))
    if overview.memory is not None:
        yield from _memory(overview.memory)
    if overview.tiers is not None:
        yield from _tiers(overview.tiers, overview.tiers_age_s or 0.0)


def _engine(engine: EngineBody) -> Text:
    if engine.status == "ok":
        age = f"last step {format_latency(engine.last_step_age_s)} ago"
        lost = f"the last one was lost: {printable(engine.last_loss)}" if engine.last_loss else ""
        return _line("engine", age, engine.doing, *_loading(engine), lost)
    why = f" in {printable(engine.stuck_in)} for {format_time(engine.stuck_s)}" if engine.stuck_in else ""
    whose = f": {', '.join(printable(id) for id in engine.requests)}" if engine.requests else ""
    return Text.assemble((f"{'engine':<{LABEL_WIDTH}}", "bold"), (f"{engine.status}{why}{whose}", "bold red"))


def _loading(engine: EngineBody) -> Iterator[str]:
    """The load under way as `reading cairn-demo`, `45%`, `12s left`."""
    if (load := engine.loading) is not None:
        yield f"{load.phase} {printable(load.model or 'a model')}"
        if load.fraction is not None:
            yield f"{load.fraction:.0%}"
        if load.seconds_left is not None:
            yield f"{format_time(load.seconds_left)} left"


def _requests(overview: OverviewBody) -> str:
    counts = overview.requests
    reasons = ", ".join(f"{count} for {reason}" for reason, count in counts.waiting_for.items() if count)
    why = f" ({reasons})" if reasons else ""
    return f"{counts.running} running, {counts.waiting} waiting{why}; at most {counts.queue_limit} wait"


def _latency(found: LatencyBody) -> str:
    if not found.count:
        return f"n/a in the last {_minutes(found.window_s)}"
    values = zip(("p50", "p90", "p99"), (found.p50_s, found.p90_s, found.p99_s), strict=True)
    text = "  ".join(f"{name} {format_latency(value)}" for name, value in values if value is not None)
    return f"{text}  ({found.count:,} in {_minutes(found.window_s)})"


def _rates(rates: Mapping[str, float]) -> str:
    """Rates by origin, output first."""
    names = sorted(rates, key=lambda name: name != "output")
    return "  ".join(f"{name} {rates[name]:,.0f}" for name in names) or "n/a"


def _reuse(found: ReuseBody) -> str:
    window = _minutes(found.window_s)
    if found.hit_rate is None:
        return f"{window} n/a"
    parts = "+".join(f"{share:.0%} {tier}" for tier, share in found.hit_rate.items() if share)
    return f"{window} {parts or '0%'}"


def _saved(found: SavedBody) -> Iterator[str]:
    """The time that reuse saved, as `1h: 412.0ms hot, 3m 05s store`."""
    for window, by_tier in (("1h:", found.last_hour_s), ("since start:", found.since_start_s)):
        parts = ", ".join(f"{_signed(seconds)} {tier}" for tier, seconds in by_tier.items() if seconds)
        yield f"{window} {parts or '0s'}"
    if found.unpriced_tokens:
        yield f"({found.unpriced_tokens:,} tokens not priced)"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{format_latency(abs(seconds))}"


def _minutes(window_s: int) -> str:
    return f"{window_s // 60}m"


def _memory(memory: MemoryBody) -> Iterator[Text]:
    """The gauge of `/admin`, and every purpose of the body."""
    held, promised = (cast("dict[str, int]", data_of(one)) for one in (memory.held, memory.promised))
    sizes = held | promised
    sizes.pop("reading")
    parts = ", ".join(f"{_PURPOSES.get(name, name)} {format_bytes(size)}" for name, size in sizes.items() if size)
    budget = memory.limits.hard_bytes if memory.limits is not None else None
    yield _line("memory", _gauge(memory.used_bytes, budget), memory.pressure)
    if parts:
        yield _line("", parts)


def _tiers(tiers: TiersBody, age_s: float) -> Iterator[Text]:
    hot, store, queue = tiers.hot, tiers.store, tiers.queue
    yield _line("hot tier", _gauge(hot.used_bytes, hot.budget_bytes), _records(hot.num_blocks, hot.num_snapshots))
    if store is not None:
        faults = ", ".join(f"{count} {kind}" for kind, count in store.faults.items())
        old = f"read {format_time(age_s)} ago" if age_s > STALE_S else ""
        blocks, snapshots = sum(one.num_blocks for one in store.models), sum(one.num_snapshots for one in store.models)
        problem = f"faults: {faults}" if faults else ""
        gauge = _gauge(store.stored_bytes, store.quota_bytes)
        yield _line("store", gauge, _records(blocks, snapshots), problem, old)
    elif tiers.problem:
        yield _line("store", printable(tiers.problem))
    if (shared := tiers.shared) is not None:
        counts = f"{shared.read.get('read', 0):,} read, {shared.written.get('written', 0):,} written"
        yield _line("shared", counts, "" if shared.is_available else "not asked: it failed")
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
    return f"{format_bytes(used)} of {format_bytes(total)}" if total else format_bytes(used)


def _line(label: str, *parts: str) -> Text:
    return Text.assemble((f"{label:<{LABEL_WIDTH}}", "bold"), "  ".join(part for part in parts if part))


def _requests_table(requests: RequestListBody) -> Iterator[Text]:
    yield Text(_row("request", "stage", "prompt", "reused", "output", "TTFT", "age", "model"), "bold")
    rows = [*requests.open, *requests.ended]
    if not rows:
        yield Text("no request yet", "dim")
    for row in rows:
        ttft = "" if row.times.ttft_s is None else format_latency(row.times.ttft_s)
        counts = (f"{row.prompt_tokens:,}", f"{sum(row.reused.values()):,}", f"{row.output_tokens:,}")
        cells = (row.id, _stage(row), *counts, ttft, format_time(row.age_s), row.model)
        yield Text(_row(*cells), "dim" if row.end is not None else "")


def _row(id: str, stage: str, prompt: str, reused: str, output: str, ttft: str, age: str, model: str) -> str:
    """Ids of Cairn's own are 33 characters long."""
    return (
        f"{printable(id, 33):<33}  {printable(stage, 17):<17} {prompt:>9} {reused:>9} {output:>7} {ttft:>8} {age:>8}  "
        f"{printable(model, 40)}"
    ).rstrip()


def _stage(row: RequestBody) -> str:
    if row.end is not None:
        return row.end.error_code or row.end.reason
    if row.preempted:
        return "preempted"
    if row.waits_for:
        return f"waits for {row.waits_for}"
    if row.stage == "prefill" and row.prompt_tokens:
        return f"prefill {min(1.0, max(0.0, row.done_tokens / row.prompt_tokens)):4.0%}"
    return {"queue": "waits"}.get(row.stage, row.stage)
