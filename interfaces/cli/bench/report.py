"""What was measured, for people as tables and for programs as plain data; and what it does not tell."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from domain.shown import shown
from interfaces.cli.bench.figures import Scenario, Streams, percentile, ratio_to
from interfaces.cli.bench.reuse import COLD

if TYPE_CHECKING:
    from rich.console import Console

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Report:
    """`settings`: what was asked for. `num_tokens`: spent in all. `is_cut`: it was interrupted."""

    url: str
    model: str
    settings: Mapping[str, Any]
    scenarios: Sequence[Scenario]
    streams: Sequence[Streams]
    num_tokens: int
    ignores_eos: bool
    is_cut: bool

    @property
    def has_figures(self) -> bool:
        return any(one.ttft_s for one in self.scenarios) or any(stream.ttft_s for stream in self.streams)


def notes(report: Report) -> Iterator[str]:
    """What a reader must know before comparing."""
    told = [count for scenario in report.scenarios for count in scenario.cached_tokens]
    if told and all(count is None for count in told):
        yield "This server does not tell how many prompt tokens it reused: only times are known."
    elif told:
        yield "Reused tokens are what the server says."
    if any(stream.tokens_a_chunk > 1.05 for stream in report.streams):
        yield "Several tokens came in one chunk: latencies are between chunks."
    if any(stream.ttft_s and stream.rate is None for stream in report.streams):
        yield "Answers hardly ran at the same time, or came in one burst: ask for more --tokens to have a rate."
    if report.streams and not report.ignores_eos:
        yield "The server refuses ignore_eos: answers may have ended before their length."
    if report.is_cut:
        yield "Interrupted: figures of what was finished."


def as_data(report: Report) -> dict[str, Any]:
    """Seconds and tokens."""
    cold = _cold(report)
    return {
        "url": report.url,
        "model": report.model,
        "settings": dict(report.settings),
        "num_tokens": report.num_tokens,
        "reuse": [
            {
                "scenario": one.name,
                "ttft_s": one.ttft_s,
                "of_cold": ratio_to(cold, one.ttft_s),
                "prompt_tokens": one.prompt_tokens,
                "cached_tokens": one.cached_tokens,
                "note": one.note or None,
            }
            for one in report.scenarios
        ],
        "decode": [
            {
                "streams": one.num_streams,
                "tokens_per_s": one.rate,
                "ttft_s": _percentiles(one.ttft_s),
                "itl_s": _percentiles(one.gaps_s),
                "num_tokens": one.num_tokens,
                "tokens_a_chunk": one.tokens_a_chunk,
                "note": one.note or None,
            }
            for one in report.streams
        ],
        "notes": list(notes(report)),
    }


def show(console: "Console", report: Report) -> None:
    from rich.table import Table

    console.print(f"{shown(report.model)} at {report.url}", highlight=False, markup=False)
    if report.scenarios:
        table = Table("to the first token", box=None, pad_edge=False, header_style="bold")
        for name in ("ms", "range", "of cold", "prompt", "reused"):
            table.add_column(name, justify="right")
        cold = _cold(report)
        for one in report.scenarios:
            table.add_row(one.name, *_reuse_cells(one, cold))
        console.print(table)
    if report.streams:
        table = Table("streams", box=None, pad_edge=False, header_style="bold")
        for name in ("tokens/s", "TTFT p50", "p99", "ITL p50", "p90", "p99", "tokens"):
            table.add_column(name, justify="right")
        for stream in report.streams:
            table.add_row(str(stream.num_streams), *_stream_cells(stream))
        console.print()
        console.print(table)
    missing = [(one.name, one.note) for one in report.scenarios if one.note]
    missing += [(f"{stream.num_streams} streams", stream.note) for stream in report.streams if stream.note]
    for line in [f"{name}: {why}" for name, why in missing] + list(notes(report)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _reuse_cells(one: Scenario, cold: Sequence[float]) -> list[str]:
    if not one.ttft_s:
        return ["-"] * 5
    lowest, highest = min(one.ttft_s) * 1e3, max(one.ttft_s) * 1e3
    ratio = ratio_to(cold, one.ttft_s)
    return [
        f"{statistics.median(one.ttft_s) * 1e3:,.0f}",
        f"{lowest:,.0f}-{highest:,.0f}",
        "" if ratio is None or one.name == COLD else f"{ratio:.2f}",
        _tokens(one.prompt_tokens),
        _tokens(one.cached_tokens),
    ]


def _stream_cells(one: Streams) -> list[str]:
    if not one.ttft_s:
        return ["-"] * 7
    latencies = [percentile(one.ttft_s, 0.5), percentile(one.ttft_s, 0.99)]
    latencies += [percentile(one.gaps_s, share) for share in PERCENTILES.values()]
    rate = "-" if one.rate is None else f"{one.rate:,.1f}"
    return [rate, *(_ms(value) for value in latencies), f"{one.num_tokens:,}"]


def _tokens(counts: Sequence[int | None]) -> str:
    """The median of the rounds that told."""
    told = [count for count in counts if count is not None]
    return f"{statistics.median_low(told):,}" if told else "not told"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:,.1f}"


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    return {name: percentile(values, share) for name, share in PERCENTILES.items()}


def _cold(report: Report) -> Sequence[float]:
    return [ttft_s for one in report.scenarios if one.name == COLD for ttft_s in one.ttft_s]
