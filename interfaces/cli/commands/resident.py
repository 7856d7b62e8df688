"""`cairn ps` and `cairn stop`: the models in the memory of a running server."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from domain.byte_size import format_bytes
from interfaces.cli.terminal.columns import columns
from interfaces.cli.terminal.options import ApiKey, AsJson, Url
from interfaces.cli.terminal.progress import format_time

if TYPE_CHECKING:
    from interfaces.cli.client.running_server import RunningServer
    from interfaces.http.native.models import ManagedBody, StandingBody


def ps(url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List the models that a running server has loaded."""
    import asyncio

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.http.native.bodies import data_of

    server = configured_server(url, api_key)
    with needed():
        found = asyncio.run(_resident(server))
    if as_json:
        typer.echo(json.dumps([data_of(one) for one in found], indent=2))
        return
    rows = [
        (
            one.standing.id,
            one.standing.state,
            format_bytes(one.bytes),
            "" if one.context_length is None else f"{one.context_length:,}",
            str(one.standing.requests),
            _until(one.standing),
        )
        for one in found
    ]
    for line in columns([("model", "state", "weights", "context", "requests", "unloaded"), *rows]):
        typer.echo(line)


def stop(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model, as `cairn ps` names it.")],
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Unload a model of a running server once its requests have ended. What it has cached stays."""
    import asyncio

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.http.native.models import StandingBody

    server = configured_server(url, api_key)
    with needed():
        body = json.dumps({"model": model}).encode()
        standing = server.understood(asyncio.run(server.ask("/models/unload", body)), StandingBody)
    waits = f" when its {standing.requests} requests have ended" if standing.requests else ""
    typer.echo(f"{standing.id}: {standing.state}{waits}")


async def _resident(server: "RunningServer") -> "list[ManagedBody]":
    from interfaces.http.native.models import ManagedListBody

    listed = server.understood(await server.ask("/models"), ManagedListBody).data
    return [one for one in listed if one.standing.state != "absent"]


def _until(standing: "StandingBody") -> str:
    if standing.pinned:
        return "never: it is pinned"
    if standing.idle_ttl_s is None:
        return "to make room"
    return f"after {format_time(standing.idle_ttl_s)} without a request"
