"""`cairn top`: a running server, live; or one snapshot of it where nobody watches."""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from interfaces.cli.cache_requests import ApiKey, Url
from interfaces.cli.failure import fail
from interfaces.cli.options import AsJson, settings_with

if TYPE_CHECKING:
    from rich.console import Console

    from interfaces.cli.running_server import RunningServer
    from interfaces.cli.top.reading import Reading

Interval = Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")]
Once = Annotated[bool, typer.Option("--once", help="One snapshot. Also where the output is no terminal.")]


def top(
    url: Url = None, api_key: ApiKey = None, interval: Interval = 1.0, once: Once = False, as_json: AsJson = False
) -> None:
    """Watch a running server: requests, rates, tiers, memory. q or Ctrl-C quits. Needs an admin's key, if any."""
    import asyncio

    from rich.console import Console

    from interfaces.cli.running_server import NoAnswer, running_server
    from interfaces.cli.top.reading import read
    from interfaces.cli.top.screen import Fatal, can_draw
    from interfaces.cli.top.view import frame

    server = running_server(url, api_key, settings_with({}).settings.server)
    console = Console(highlight=False)
    try:
        if once or as_json or not can_draw(console):
            reading = asyncio.run(read(server))
            if as_json:
                typer.echo(json.dumps(reading.as_data(), indent=2))
                return
            for line in frame(reading, server.url, console.width, None):
                console.print(line)
        else:
            asyncio.run(_live(server, console, interval))
    except NoAnswer as why:
        fail(str(why), why.exit_status)
    except Fatal as why:
        fail(str(why))


async def _live(server: "RunningServer", console: "Console", interval_s: float) -> None:
    import asyncio
    import time

    from rich.console import Group
    from rich.live import Live

    from interfaces.cli.top.reading import read
    from interfaces.cli.top.screen import KEYS_TOLD, due, stopped_by_keys, trouble, watch
    from interfaces.cli.top.view import fitted, frame

    stop = asyncio.Event()
    with Live(console=console, screen=True, auto_refresh=False, transient=True) as live, stopped_by_keys(stop):

        def show(reading: "Reading | None", problem: str, age_s: float) -> None:
            width, height = console.size
            above = list(fitted(trouble(problem, age_s, has_reading=reading is not None), width))
            lines = [] if reading is None else frame(reading, server.url, width, height - len(above) - 1)
            live.update(Group(*above, *lines[: height - len(above) - 1], KEYS_TOLD), refresh=True)

        await watch(partial(read, server), show, stop, partial(due, interval_s=interval_s), time.monotonic)


__all__ = ("top",)
