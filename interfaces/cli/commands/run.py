"""`cairn run`: a chat with a model in the terminal, by the server that runs or by an engine of its own."""

import json
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from domain.printable import printable
from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import AsJson, Backend, Dtype, Model, ModelDirs, model_flags, settings_with

if TYPE_CHECKING:
    from application.settings import Settings
    from interfaces.cli.client.running_server import RunningServer

Images = Annotated[
    list[str] | None, typer.Option("--image", metavar="PATH", help="An image for the first question. May be repeated.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print tokens, reuse and times under each answer.")]


def run(
    model: Model = None,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Ask once and exit; without it chat, or ask the piped input."),
    ] = None,
    dtype: Dtype = None,
    model_dir: ModelDirs = None,
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    image: Images = None,
    max_tokens: Annotated[int | None, typer.Option(help="Limit of an answer in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 for greedy decoding. Default: the model's.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: the model's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Equal seeds give equal answers.")] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
    backend: Backend = None,
) -> None:
    """Chat with a model in the terminal. Ctrl-C cancels an answer, Ctrl-D ends the chat.

    The server that runs is used if it has the model; otherwise this process loads it.
    """
    import asyncio

    from domain.errors import DomainError
    from interfaces.cli.chat.session import image_url
    from interfaces.cli.client.running_server import NoAnswer
    from interfaces.cli.terminal.logs import configure_logging

    flags = model_flags(model, dtype, model_dir, backend)
    settings = settings_with(flags).settings
    configure_logging("critical", "plain")  # this command reports errors itself
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            fail("the piped input is empty")
    if as_json and prompt is None:
        fail("--json needs a PROMPT, or piped input", USAGE)
    named = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    fields = {name: value for name, value in named.items() if value is not None}
    wants_own = dtype is not None or model_dir is not None or backend is not None

    try:
        images = [image_url(path) for path in image or ()]
    except ValueError as error:
        fail(f"--image: {error}", USAGE)

    async def talk() -> None:
        chosen = None if wants_own else await _served(settings, model)
        async with _opened(chosen, settings) as (server, name):
            await converse(server, name, fields, system, prompt, images, is_verbose=verbose, as_json=as_json)

    try:
        asyncio.run(talk())
    except (DomainError, NoAnswer) as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("cancelled", 130)


async def _served(settings: "Settings", wanted: str | None) -> "tuple[RunningServer, str] | None":
    """The running server and its model; None if there is none that has the model, which is said. `wanted` None: its
    default model. Raises NoAnswer if it refuses this client."""
    from interfaces.cli.client.running_server import NoAnswer, NotRunning, running_server
    from interfaces.cli.client.served_models import chat_models, default_model, with_needed_key

    try:
        server = await with_needed_key(running_server(None, None, settings.server))
        listed = await chat_models(server)
    except NotRunning:
        return None
    except NoAnswer as why:
        if why.http_status == 401:
            raise
        typer.echo(f"cairn: {why}; this process loads the model", err=True)
        return None
    model = wanted or await default_model(server) or next(iter(listed), "")
    if model not in listed:
        typer.echo(
            f"cairn: the server at {server.url} does not have it; this process loads {printable(model)}", err=True
        )
        return None
    typer.echo(f"cairn: {printable(model)} at {server.url}", err=True)
    return server, model


@asynccontextmanager
async def _opened(
    chosen: "tuple[RunningServer, str] | None", settings: "Settings"
) -> "AsyncGenerator[tuple[RunningServer, str]]":
    """The chosen server, or one of this process. Raises DomainError."""
    if chosen is not None:
        yield chosen
        return
    from interfaces.cli.server.own_server import own_server, own_settings
    from interfaces.composition.service import build_service

    service = build_service(replace(settings, server=own_settings()))
    async with own_server(service) as server:
        yield server, settings.model.default


async def converse(
    server: "RunningServer",
    model: str,
    fields: Mapping[str, object],
    system: str | None = None,
    prompt: str | None = None,
    images: "list[str] | None" = None,
    *,
    is_verbose: bool = False,
    as_json: bool = False,
) -> None:
    """Asks once, or chats until the input ends. Raises NoAnswer."""
    from rich.console import Console

    from interfaces.cli.chat.conversation import Conversation
    from interfaces.cli.chat.session import ChatSession

    conversation = Conversation(server, model, fields, system)
    conversation.images += images or []
    session = ChatSession(conversation, Console(highlight=False), is_verbose=is_verbose)
    if prompt is None:
        typer.echo(f"{printable(model)}. Ctrl-C cancels an answer, Ctrl-D ends, /help lists commands.", err=True)
        await session.run()
        return
    if as_json:
        data = (await conversation.ask(prompt, lambda _text, _is_reasoning: None)).as_data()
        typer.echo(json.dumps(data, ensure_ascii=False, indent=2))
    elif await session.answer(prompt) is None:
        fail("cancelled", 130)
