"""`cairn cache explain` and `warm`: explain the reuse of a request by a running server, or compute it ahead of time."""

import json
import sys
from pathlib import Path
from typing import Annotated, cast

import typer

from domain.printable import printable
from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import ApiKey, AsJson, Url

RequestFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The JSON body of a chat or text completion request; - for stdin.")
]
OtherModel = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Instead of the request's model.")]


def explain(
    file: RequestFile, url: Url = None, model: OtherModel = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Explain what a running server would reuse of a request, and why no more. Computes nothing."""
    import asyncio

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.http.native.cache import ExplanationBody

    server, body = configured_server(url, api_key), _read_request(file, model)
    with needed():
        answer = asyncio.run(server.ask("/v1/cache/explain", body))
        explanation = server.understood(answer, ExplanationBody)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from rich.console import Console

    from interfaces.cli.client.request_story import show_explanation

    show_explanation(Console(), explanation)


def warm(
    file: RequestFile, url: Url = None, model: OtherModel = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Let a running server compute a request's prompt now, so that the request finds it."""
    import asyncio

    from rich.console import Console

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.http.native.cache import WarmedBody

    server, body = configured_server(url, api_key), _read_request(file, model)
    with needed(), Console(stderr=True, quiet=as_json).status("warming"):
        answer = asyncio.run(server.ask("/v1/cache/warm", body))
        result = server.understood(answer, WarmedBody)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    for prompt in result.prompts:
        stored = prompt.stored_tokens
        kept = f"{stored:,} stored" if stored is not None else "kept in memory only: the server has no store"
        typer.echo(
            f"{printable(result.model)}: {prompt.prompt_tokens:,} prompt tokens,"
            f" {prompt.reused_tokens:,} reused, {prompt.computed_tokens:,} computed, {kept}"
        )


def _read_request(file: str, model: str | None) -> bytes:
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as failure:
        fail(f"{file} cannot be read: {failure.strerror}")
    try:
        request = json.loads(raw)
    except ValueError as failure:
        fail(f"{file} is not JSON: {failure}", USAGE)
    if not isinstance(request, dict):
        fail(f"{file} is not a request: a JSON object with messages or prompt is needed", USAGE)
    return raw if model is None else json.dumps({**cast("dict[str, object]", request), "model": model}).encode()
