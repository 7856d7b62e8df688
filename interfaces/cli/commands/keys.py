"""`cairn keys`: the keys of a server's clients. A key is shown once, when it is made; its file holds only its
SHA-256."""

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import AsJson, settings_with

if TYPE_CHECKING:
    from adapters.system.key_file import KeyFile
    from domain.client import Client

keys_app = typer.Typer(help="Add, list and remove the keys of clients.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key in logs and traces.")]
File = Annotated[str | None, typer.Option("--file", metavar="FILE", help="Default: the setting server.key_file.")]
Salt = Annotated[
    str | None,
    typer.Option(help="Keys of one salt share prefixes. Default: a random one. '': shared with all keys without one."),
]
PerMinute = Annotated[int | None, typer.Option("--requests-per-minute", metavar="N", help="Default: no limit.")]
Concurrent = Annotated[int | None, typer.Option("--max-concurrent", metavar="N", help="Default: no limit.")]
Models = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", help="A model that the key may use. May be repeated. Default: all."),
]
ToolServers = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp",
        metavar="NAME",
        help="A tool server that the key may use. May be repeated. Default: none, or all with --admin.",
    ),
]
Rank = Annotated[
    str,
    typer.Option(
        "--priority", metavar="NAME", help="`interactive` or `batch`, which waits for the requests of other keys."
    ),
]
Admin = Annotated[
    bool, typer.Option("--admin", help="The key may also clear the cache and read its totals and metrics.")
]


@keys_app.command("add")
def add(
    name: Name,
    file: File = None,
    salt: Salt = None,
    requests_per_minute: PerMinute = None,
    max_concurrent: Concurrent = None,
    model: Models = None,
    priority: Rank = "interactive",
    admin: Admin = False,
    mcp: ToolServers = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and show it once. A running server accepts it within seconds."""
    from adapters.system.key_file import new_key, with_key
    from domain.client import Client
    from domain.errors import DomainError
    from domain.priority import named_priority

    models = frozenset(model) if model else None
    try:
        limits = requests_per_minute, max_concurrent, models, named_priority(priority)
        key, client = new_key(Client(name, "", salt or "", *limits, admin, frozenset(mcp) if mcp else None))
        if salt is not None:
            client = replace(client, salt=salt)
        _file(file).change(lambda text: with_key(text, client))
    except DomainError as error:
        fail(error.message, USAGE)
    if as_json:
        typer.echo(json.dumps({"key": key, **_shown(client)}, indent=2))
        return
    typer.echo(key)
    typer.echo("This is the only time it is shown.", err=True)


@keys_app.command("list")
def list_keys(file: File = None, as_json: AsJson = False) -> None:
    """List the keys by name, with their limits and permissions."""
    from domain.errors import InvalidKeys

    try:
        clients = _file(file).read()
    except InvalidKeys as error:
        fail(error.message)
    if as_json:
        typer.echo(json.dumps([_shown(client) for client in clients], indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    columns = ("name", "prefixes", "a minute", "at once", "priority", "admin")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    table.add_column("models", overflow="fold")
    table.add_column("tool servers", overflow="fold")
    for client in clients:
        models = "all" if client.models is None else ", ".join(sorted(client.models)) or "none"
        servers = ", ".join(sorted(client.mcp or ())) or ("all" if client.mcp is None and client.admin else "none")
        limits = [str(limit or "no limit") for limit in (client.requests_per_minute, client.max_concurrent)]
        shared = "by salt" if client.salt else "shared"
        table.add_row(
            client.name, shared, *limits, client.priority.value, "yes" if client.admin else "no", models, servers
        )
    Console().print(table)


@keys_app.command("remove")
def remove(name: Name, file: File = None) -> None:
    """Remove a key. A running server refuses it within seconds; requests that have begun are finished."""
    from adapters.system.key_file import without_key
    from domain.errors import InvalidKeys

    try:
        _file(file).change(lambda text: without_key(text, name))
    except InvalidKeys as error:
        fail(error.message)


def _file(given: str | None) -> "KeyFile":
    from adapters.system.key_file import KeyFile

    path = given or settings_with({}).settings.server.key_file
    if path is None:
        fail("no key file is set: name one with --file, or in the setting server.key_file", USAGE)
    return KeyFile(os.fspath(path))


def _shown(client: "Client") -> dict[str, Any]:
    """Returns a client's fields without its hash and its salt, a secret with which the tenant's prefixes can be
    probed."""
    from adapters.system.key_file import key_fields

    values = key_fields(client)
    del values["sha256"]
    return {"name": client.name, "has_salt": bool(values.pop("salt"))} | values
