"""`cairn bench`: what reuse and decoding are worth on a server, Cairn or any other that speaks OpenAI's chat."""

import json
import secrets
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from interfaces.cli.terminal.failure import USAGE, fail
from interfaces.cli.terminal.options import AsJson, key_in

if TYPE_CHECKING:
    from interfaces.cli.bench.report import Report
    from interfaces.cli.bench.run import BenchPlan

MAX_STREAMS = 256

Url = Annotated[str, typer.Argument(metavar="URL", help="The server, as http://host:port; with or without /v1.")]
ModelName = Annotated[str, typer.Option("--model", metavar="NAME", help="Not needed where the server has one.")]
Key = Annotated[
    str | None,
    typer.Option("--api-key-file", metavar="FILE", callback=key_in, help="With the server's key; no other is sent."),
]
Only = Annotated[str, typer.Option(metavar="all|reuse|decode", help="What to measure.")]
PromptTokens = Annotated[int, typer.Option(min=50, max=2**20, help="Of a long prompt, about.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="How often each scenario is run.")]
Users = Annotated[int, typer.Option(min=1, max=MAX_STREAMS, help="How many share a system prompt.")]
Pause = Annotated[float, typer.Option(min=0, max=3600, help="Seconds before the first prompts are asked again.")]
StreamCounts = Annotated[str, typer.Option("--streams", metavar="N,N", help="How many answers to decode at once.")]
Tokens = Annotated[int, typer.Option(min=8, max=2**16, help="Of each decoded answer.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Most tokens to spend, of prompts and answers.")]
MaxTime = Annotated[float, typer.Option(min=1, max=86_400, help="Most seconds to take.")]
Seed = Annotated[int | None, typer.Option(help="Of the prompts. Default: a new one, so that nothing is known of them.")]


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
    max_tokens: MaxTokens = 250_000,
    max_time: MaxTime = 600.0,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Measure a server: the time to the first token where prompts repeat, and how fast it decodes."""
    from interfaces.cli.bench.reuse import ReuseOptions
    from interfaces.cli.bench.run import BenchPlan

    if only not in {"all", "reuse", "decode"}:
        fail(f"--only must be all, reuse or decode, not {only!r}", USAGE)
    reuse = ReuseOptions(
        prompt_tokens=prompt_tokens,
        rounds=0 if only == "decode" else rounds,
        num_users=users,
        pause_s=pause,
        seed=secrets.randbelow(2**32) if seed is None else seed,
    )
    counts = () if only == "reuse" else _stream_counts(streams)
    report = _measured(BenchPlan(_address(url), model, reuse, counts, tokens, max_tokens, max_time), api_key, as_json)
    if as_json:
        from interfaces.cli.bench.report import as_data

        typer.echo(json.dumps(as_data(report), indent=2))
    else:
        from rich.console import Console

        from interfaces.cli.bench.report import show

        show(Console(), report)
    if report.is_cut:
        raise typer.Exit(130)
    if not report.has_figures:
        raise typer.Exit(1)


def _measured(plan: "BenchPlan", api_key: str | None, quiet: bool) -> "Report":
    import asyncio

    from interfaces.cli.bench.allowance import Spent
    from interfaces.cli.bench.run import Bench
    from interfaces.cli.bench.target import BenchFailed
    from interfaces.cli.terminal.interrupt import unless_interrupted
    from interfaces.cli.terminal.progress import Unit, progress

    if not quiet and sys.stderr.isatty():
        about = plan.reuse.num_tokens + sum(plan.streams) * plan.tokens
        most = f"{plan.max_tokens:,} tokens and {plan.max_time_s:g} s"
        typer.echo(f"{plan.num_asked} requests, about {about:,} tokens; at most {most}", err=True)
    with progress("measuring", plan.num_asked, Unit.REQUESTS, quiet=quiet) as bar:
        bench = Bench(plan, api_key, asyncio.sleep, bar.advance)
        try:
            with asyncio.Runner() as runner:
                runner.run(unless_interrupted(bench.run()))
        except (BenchFailed, Spent) as why:
            fail(str(why))
    return bench.report()


def _address(url: str) -> str:
    """Without a path; ends the command for what is no address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        fail(f"{url!r} is no address: write http://host:port", USAGE)
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _stream_counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or not all(1 <= count <= MAX_STREAMS for count in counts):
        fail(f"--streams {text!r} is no list of numbers from 1 to {MAX_STREAMS}: write 1,4,8", USAGE)
    return counts
