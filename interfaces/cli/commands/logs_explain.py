"""`cairn logs explain`: the story of one request."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domain.printable import printable
from interfaces.cli.terminal.ending import fail
from interfaces.cli.terminal.options import ApiKey, AsJson, Url

if TYPE_CHECKING:
    from interfaces.http.native.requests import RequestBody

LABEL_WIDTH = 12
TIMEOUT_S = 10.0

logs_app = typer.Typer(help="Read the log of the server.", no_args_is_help=True)

Id = Annotated[
    str,
    typer.Argument(metavar="REQUEST_ID", help="The id of an answer, such as chatcmpl-... (see cairn status)."),
]
Log = Annotated[
    str | None,
    typer.Option("--log", metavar="FILE", help="The server's log, plain or JSON; - for stdin."),
]


@logs_app.callback()
def logs() -> None:
    """Read the log of the server."""


@logs_app.command()
def explain(id: Id, log: Log = None, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Explain one request: why it waited, what was reused, where the time went, why it ended.

    A running server is asked first (it remembers open requests and the last that ended), then the log, if one is given.
    """
    from interfaces.cli.client.request_story import story_lines
    from interfaces.cli.client.running_server import NoAnswer
    from interfaces.http.native.bodies import data_of

    found, problem = None, ""
    try:
        found = _from_server(id, url, api_key), ""
    except NoAnswer as why:
        problem = str(why)
    if found is None and log is not None:
        found = _from_log(id, log)
        problem = f"{log} has no line about {id!r}; {problem}"
    if found is None:
        hint = "" if log is not None else "; older ones are in its log: give it with --log FILE"
        fail(f"{problem}{hint}. Ids are those of answers (chatcmpl-...), not of x-request-id headers")
    body, trace_id = found
    if as_json:
        trace = {"trace_id": trace_id} if trace_id else {}
        typer.echo(json.dumps({**cast("dict[str, object]", data_of(body)), **trace}, indent=2))
        return
    for label, text in story_lines(body, trace_id):
        typer.echo(f"{label:<{LABEL_WIDTH}}{text}")


def _from_server(id: str, url: str | None, api_key: str | None) -> "RequestBody":
    """Asks the server. Raises NoAnswer."""
    import asyncio
    from urllib.parse import quote

    from interfaces.cli.client.request_story import queued_at
    from interfaces.cli.client.running_server import NoAnswer, configured_server
    from interfaces.http.native.requests import RequestBody

    server = configured_server(url, api_key)
    answer = asyncio.run(server.ask(f"/admin/api/requests/{quote(id, safe='')}", timeout_s=TIMEOUT_S))
    body = server.understood(answer, RequestBody)
    try:
        queued_at(body)
    except (ValueError, OverflowError, OSError) as error:
        raise NoAnswer(f"the server at {server.url} is not this version of Cairn: {printable(str(error))}") from None
    return body


def _from_log(id: str, log: str) -> "tuple[RequestBody, str] | None":
    """Searches the log for the request and its trace id. Ends the command for a log that cannot be read."""
    from interfaces.cli.client.request_story import find_story

    if log == "-":
        return find_story(sys.stdin, id)
    try:
        with Path(log).open(encoding="utf-8", errors="replace") as lines:
            return find_story(lines, id)
    except OSError as failure:
        fail(f"{log} cannot be read: {failure.strerror}")
