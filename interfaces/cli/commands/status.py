"""`cairn status`: the state of a running server, on one screen or as JSON."""

import json

from interfaces.cli.terminal.options import ApiKey, AsJson, Url


def status(url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Show the state of a running server: models, requests, rates, reuse, memory. Needs an admin's key, if any."""
    import asyncio

    import typer
    from rich.console import Console

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.cli.commands.status_screen import lines, read

    server = configured_server(url, api_key)
    with needed():
        found = asyncio.run(read(server))
    if as_json:
        from interfaces.http.native.bodies import data_of

        data = {"overview": data_of(found.overview), "requests": data_of(found.requests)}
        typer.echo(json.dumps(data, indent=2))
        return
    console = Console(highlight=False)
    for line in lines(found, server.url, console.width, console.height - 1 if console.is_terminal else None):
        console.print(line)
