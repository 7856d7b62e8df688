"""`cairn status`: the state of a running server, on one screen or as JSON."""

import json
from typing import Annotated

import typer

from interfaces.cli.terminal.ending import fail
from interfaces.cli.terminal.options import ApiKey, AsJson, Url

Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0.0, help="The longest wait. Default: until Ctrl-C."),
]


def status(url: Url = None, api_key: ApiKey = None, as_json: AsJson = False, timeout: Timeout = None) -> None:
    """Show the state of a running server: models, requests, rates, reuse, memory. Needs an admin's key, if any.

    While a server is slow, what it has answered is shown with its age.
    """
    import asyncio

    from rich.console import Console, Group
    from rich.live import Live

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.cli.commands.status_screen import Status, lines, read

    server = configured_server(url, api_key)
    console = Console(highlight=False)
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
