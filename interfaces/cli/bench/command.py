"""`cairn bench`: times to the first token where prompts repeat, and decode rates, of any server with OpenAI's chat."""

import json
import math
import secrets
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from application.settings import is_loopback
from domain.printable import printable
from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import AsJson, key_in

if TYPE_CHECKING:
    from interfaces.cli.bench.scenarios import Options, Scenario

MAX_STREAMS = 256

Url = Annotated[str, typer.Argument(metavar="URL", help="The server, as http://host:port; with or without /v1.")]
ModelName = Annotated[str, typer.Option("--model", metavar="NAME", help="Default: the server's only model.")]
Key = Annotated[
    str | None,
    typer.Option("--api-key-file", metavar="FILE", callback=key_in, help="File with the server's key."),
]
Only = Annotated[str, typer.Option(metavar="all|reuse|decode", help="Which scenarios to run.")]
PromptTokens = Annotated[int, typer.Option(min=50, max=2**20, help="Approximate size of a long prompt.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="Rounds of each scenario.")]
Users = Annotated[int, typer.Option(min=1, max=MAX_STREAMS, help="Clients that share a system prompt.")]
Pause = Annotated[float, typer.Option(min=0, max=3600, help="Seconds before the first prompts are sent again.")]
StreamCounts = Annotated[str, typer.Option("--streams", metavar="N,N", help="Numbers of answers to decode at once.")]
Tokens = Annotated[int, typer.Option(min=8, max=2**16, help="Tokens of each decoded answer.")]


def bench(
    url: Url,
    model: ModelName = "",
    api_key: Key = None,
    only: Only = "all",
    prompt_tokens: PromptTokens = 1000,
    rounds: Rounds = 3,
    users: Users = 8,
    pause: Pause = 10.0,
    streams: StreamCounts = "1,4,8",
    tokens: Tokens = 128,
    as_json: AsJson = False,
) -> None:
    """Measure a server: times to the first token where prompts repeat, and decode rates."""
    from interfaces.cli.bench.scenarios import Options

    if only not in {"all", "reuse", "decode"}:
        fail(f"--only must be all, reuse or decode, not {only!r}", USAGE)
    options = Options(
        prompt_tokens=prompt_tokens,
        rounds=0 if only == "decode" else rounds,
        users=users,
        pause_s=pause,
        streams=() if only == "reuse" else _stream_counts(streams),
        tokens=tokens,
    )
    report, is_whole = _measured(_address(url), model, options, api_key, as_json)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _show(report)
    if not is_whole:
        raise typer.Exit(130)
    if not any(row["ttft_s"] for row in report["scenarios"]):
        raise typer.Exit(1)


def _measured(
    url: str, model: str, options: "Options", api_key: str | None, quiet: bool
) -> tuple[dict[str, Any], bool]:
    """The report, and False for a run that was interrupted."""
    import asyncio

    from interfaces.cli.bench.client import BenchFailed, Target, new_client
    from interfaces.cli.bench.scenarios import Bench
    from interfaces.cli.terminal.ending import unless_interrupted
    from interfaces.cli.terminal.progress import Unit, progress

    client = new_client(api_key, is_local=is_loopback(urlsplit(url).hostname or ""))
    target = Target(client, url, model)
    with progress("measuring", options.num_requests, Unit.REQUESTS, quiet=quiet) as bar:
        run = Bench(target, options, asyncio.sleep, bar.advance, secrets.randbelow(2**32))

        async def measure() -> None:
            async with client:
                await run.run()

        try:
            with asyncio.Runner() as runner:
                is_whole = runner.run(unless_interrupted(measure()))
        except BenchFailed as why:
            fail(str(why))
    scenarios = [one for one in run.scenarios.values() if one.ttft_s or one.note]
    notes = list(_notes(scenarios, ignores_eos=target.ignores_eos, is_whole=is_whole))
    return as_data(url, target.model, options, scenarios, notes), is_whole


def _notes(scenarios: "Sequence[Scenario]", *, ignores_eos: bool, is_whole: bool) -> Iterator[str]:
    """Facts that a reader needs before comparing."""
    counts = [count for one in scenarios for count in one.cached_tokens]
    if counts and all(count is None for count in counts):
        yield "The server does not report how many prompt tokens it reused: only times are known."
    if any(one.tokens_a_chunk > 1.05 for one in scenarios):
        yield "Several tokens came in one chunk: inter-token latencies are between chunks."
    if any(one.output_tokens and one.rate is None for one in scenarios):
        yield "Answers hardly ran at the same time, or came in one burst: ask for more --tokens to have a rate."
    if not ignores_eos:
        yield "The server refuses ignore_eos: answers may have ended before their length."
    if not is_whole:
        yield "Interrupted: figures of the scenarios that were finished."


def as_data(
    url: str, model: str, options: "Options", scenarios: "Sequence[Scenario]", notes: Sequence[str]
) -> dict[str, Any]:
    """The report in seconds and tokens. `of_cold`: the median of the ratios to the cold prompt, round by round."""
    cold = [ttft_s for one in scenarios if one.name == "cold prompt" for ttft_s in one.ttft_s]
    rows: list[dict[str, Any]] = []
    for one in scenarios:
        ratios = [] if one.output_tokens else [s / base for s, base in zip(one.ttft_s, cold, strict=False) if base > 0]
        rows.append(
            {
                "scenario": one.name,
                "ttft_s": one.ttft_s,
                "of_cold": statistics.median_low(ratios) if ratios else None,
                "prompt_tokens": one.prompt_tokens,
                "cached_tokens": one.cached_tokens,
                "output_tokens": one.output_tokens,
                "tokens_per_s": one.rate,
                "itl_p50_s": percentile(one.gaps_s, 0.5),
                "itl_p99_s": percentile(one.gaps_s, 0.99),
                "note": one.note or None,
            }
        )
    return {"url": url, "model": model, "settings": asdict(options), "scenarios": rows, "notes": list(notes)}


def percentile(values: Sequence[float], share: float) -> float | None:
    """Returns the smallest value that at least this share of the values does not exceed (nearest rank); None without
    values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else None


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"{printable(report['model'])} at {report['url']}", highlight=False, markup=False)
    table = Table("scenario", box=None, pad_edge=False, header_style="bold")
    for name in ("TTFT ms", "of cold", "prompt", "reused", "tokens/s", "ITL ms", "p99"):
        table.add_column(name, justify="right")
    for row in report["scenarios"]:
        table.add_row(
            row["scenario"],
            f"{statistics.median(row['ttft_s']) * 1e3:,.0f}" if row["ttft_s"] else "-",
            "" if row["of_cold"] is None else f"{row['of_cold']:.2f}",
            _tokens(row["prompt_tokens"]),
            _tokens(row["cached_tokens"]),
            "" if row["tokens_per_s"] is None else f"{row['tokens_per_s']:,.1f}",
            *("" if row[name] is None else f"{row[name] * 1e3:,.1f}" for name in ("itl_p50_s", "itl_p99_s")),
        )
    console.print(table)
    missing = [f"{row['scenario']}: {row['note']}" for row in report["scenarios"] if row["note"]]
    for line in (*missing, *report["notes"]):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _tokens(counts: Sequence[int | None]) -> str:
    """The median of the rounds that have a count."""
    known = [count for count in counts if count is not None]
    if not counts:
        return ""
    return f"{statistics.median_low(known):,}" if known else "unknown"


def _address(url: str) -> str:
    """The URL without a path; ends the command for a malformed one."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        fail(f"{url!r} is not an address: write http://host:port", USAGE)
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _stream_counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= MAX_STREAMS for count in counts):
        fail(f"--streams {text!r} is not a list of numbers from 1 to {MAX_STREAMS}: write 1,4,8", USAGE)
    return counts
