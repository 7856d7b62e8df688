"""`cairn logs explain`: the story of one request."""

import json
from typing import TYPE_CHECKING, Annotated

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


@logs_app.callback()
def logs() -> None:
    """Read the log of the server."""


@logs_app.command()
def explain(id: Id, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Explain one request: why it waited, what was reused, where the time went, why it ended.

    The running server remembers open requests and the last that ended.
    """
    from interfaces.cli.client.request_story import story_lines
    from interfaces.cli.client.running_server import NoAnswer
    from interfaces.http.native.bodies import data_of

    try:
        body = _from_server(id, url, api_key)
    except NoAnswer as why:
        fail(
            f"{why}; the log of the server has a line about each that ended. Ids are those of answers (chatcmpl-...),"
            " not of x-request-id headers"
        )
    if as_json:
        typer.echo(json.dumps(data_of(body), indent=2))
        return
    for label, text in story_lines(body):
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
