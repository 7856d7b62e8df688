"""`cairn status`: the state of a running server, on one screen or as JSON."""

import json

from interfaces.cli.commands.cache_requests import Url
from interfaces.cli.terminal.ending import fail
from interfaces.cli.terminal.options import ApiKey, AsJson, settings_with


def status(url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Show the state of a running server: models, requests, rates, reuse, memory. Needs an admin's key, if any."""
    import asyncio

    import typer
    from rich.console import Console

    from interfaces.cli.client.running_server import NoAnswer, running_server
    from interfaces.cli.commands.status_screen import lines, read

    server = running_server(url, api_key, settings_with({}).settings.server)
    try:
        found = asyncio.run(read(server))
    except NoAnswer as why:
        fail(str(why), why.exit_status)
    if as_json:
        from interfaces.http.native.bodies import data_of

        data = {"overview": data_of(found.overview), "requests": data_of(found.requests)}
        typer.echo(json.dumps(data, indent=2))
        return
    console = Console(highlight=False)
    for line in lines(found, server.url, console.width):
        console.print(line)
