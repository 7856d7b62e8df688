"""`cairn cache explain` and `warm`: what a running server would reuse of a request, and computing it ahead of time."""

import json
import sys
from pathlib import Path
from typing import Annotated, TypedDict, cast

import typer

from interfaces.cli.failure import USAGE, fail
from interfaces.cli.options import AsJson, settings_with

RequestFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The JSON body of a chat or text completion request; - for stdin.")
]
Url = Annotated[
    str | None, typer.Option(metavar="URL", help="The server. Default: the address in the settings, on this machine.")
]
ApiKey = Annotated[str | None, typer.Option(metavar="KEY", help="The server's key. Default: the one in the settings.")]
OtherModel = Annotated[str | None, typer.Option("--model", metavar="NAME", help="Instead of the request's model.")]


class _WarmedPrompt(TypedDict):
    prompt_tokens: int
    reused_tokens: int
    computed_tokens: int
    stored_tokens: int | None


def explain(
    file: RequestFile, url: Url = None, model: OtherModel = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Say what a running server would reuse of a request, and why no more. Computes nothing."""
    answer = _ask("/v1/cache/explain", file, url, model, api_key)
    if as_json:
        typer.echo(json.dumps(answer, indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    from interfaces.cli.explanation_view import PromptView, show_explanation

    show_explanation(Console(), str(answer["model"]), cast("list[PromptView]", answer["prompts"]))


def warm(
    file: RequestFile, url: Url = None, model: OtherModel = None, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Let a running server compute a request's prompt now, so that the request finds it."""
    answer = _ask("/v1/cache/warm", file, url, model, api_key)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    for prompt in cast("list[_WarmedPrompt]", answer["prompts"]):
        stored = prompt["stored_tokens"]
        kept = f"{stored:,} stored" if stored is not None else "kept in memory only: the server has no store"
        typer.echo(
            f"{answer['model']}: {prompt['prompt_tokens']:,} prompt tokens, {prompt['reused_tokens']:,} reused,"
            f" {prompt['computed_tokens']:,} computed, {kept}"
        )


def _ask(path: str, file: str, url: str | None, model: str | None, api_key: str | None) -> dict[str, object]:
    from interfaces.cli.running_server import running_server

    body = _read_request(file, model)
    settings = settings_with({}).settings.server
    answer = running_server(url, api_key, settings).post(path, body)
    if "prompts" not in answer:
        fail("what answers there is not a Cairn server that can do this")
    return answer


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


__all__ = ("explain", "warm")
