"""`cairn status`: the state of a running server, on one screen or as JSON."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import ApiKey, AsJson, Url

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from interfaces.cli.client.running_server import RunningServer
    from interfaces.cli.commands.status_screen import Status

Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0.0, help="The longest wait. Default: until Ctrl-C."),
]


Watch = Annotated[bool, typer.Option("--watch", help="Show it anew every two seconds, until Ctrl-C.")]

WATCH_S = 2.0


def status(
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
    timeout: Timeout = None,
    watch: Watch = False,
) -> None:
    """Show models, requests, rates, reuse and memory of a server.

    Needs an admin's key where keys are needed.

    While a server is slow, what it has answered is shown with its age.
    """
    import asyncio

    from rich.console import Console, Group
    from rich.live import Live

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.cli.commands.status_screen import Status, lines, read

    server = configured_server(url, api_key)
    console = Console(highlight=False)
    if watch and (as_json or not console.is_terminal):
        fail("--watch needs a terminal, and no --json", USAGE)
    known: Status | None = None

    def screen(found: Status) -> Group:
        height = console.height - 1 if console.is_terminal else None
        return Group(*lines(found, server.url, console.width, height))

    def show(found: Status) -> None:
        nonlocal known
        if console.is_terminal and not as_json:
            live.update(screen(found), refresh=True)
        elif known is None and timeout is None:
            typer.echo(f"cairn: {server.url} has not answered yet; --timeout bounds the wait", err=True)
        known = found

    live = Live(console=console, auto_refresh=False, transient=True)
    if watch:
        _follow(server, live, screen)
        return
    try:
        with needed(), live:
            known = asyncio.run(read(server, timeout, show))
    except KeyboardInterrupt:
        if known is not None and not as_json:
            console.print(screen(known))
        fail("cancelled", 130)
    if as_json:
        from interfaces.http.native.bodies import data_of

        data = {"overview": data_of(known.overview), "requests": data_of(known.requests)}
        typer.echo(json.dumps(data, indent=2))
        return
    console.print(screen(known))


def _follow(server: "RunningServer", live: "Live", screen: "Callable[[Status], Group]") -> None:
    """Shows the state again and again until Ctrl-C, whatever becomes of the server meanwhile."""
    import asyncio

    from rich.text import Text

    from interfaces.cli.client.running_server import NoAnswer
    from interfaces.cli.commands.status_screen import read

    async def follow() -> None:
        while True:
            try:
                live.update(screen(await read(server, show=lambda found: live.update(screen(found)))), refresh=True)
            except NoAnswer as why:
                live.update(Text(f"cairn: {why}"), refresh=True)
            await asyncio.sleep(WATCH_S)

    with suppress(KeyboardInterrupt), live:
        asyncio.run(follow())
