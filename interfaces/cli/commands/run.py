"""`cairn run`: a chat with a model in the terminal, without a server."""

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from domain.printable import plain
from interfaces.cli.terminal.ending import fail
from interfaces.cli.terminal.options import Backend, Dtype, Model, ModelDirs, model_flags, settings_with

if TYPE_CHECKING:
    from asyncio import Runner

    from domain.request.sampling import SamplingParams, StopRules
    from interfaces.cli.commands.chat import Chat
    from interfaces.composition.service import Service


def run(
    model: Model = None,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Ask once and exit; without it chat, or ask the piped input."),
    ] = None,
    dtype: Dtype = None,
    model_dir: ModelDirs = None,
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Limit of an answer in tokens.")] = None,
    temperature: Annotated[float, typer.Option(help="0 for greedy decoding.")] = 0.0,
    backend: Backend = None,
) -> None:
    """Chat with a model in the terminal. Ctrl-C cancels an answer, Ctrl-D ends the chat."""
    from domain.errors import DomainError
    from domain.request.sampling import SamplingParams, StopRules
    from interfaces.cli.terminal.logs import configure_logging
    from interfaces.composition.service import build_service

    settings = settings_with(model_flags(model, dtype, model_dir, backend)).settings
    configure_logging("critical", "plain")  # this command reports errors itself
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            fail("the piped input is empty")
    try:
        sampling, stop = SamplingParams(temperature=temperature), StopRules(max_tokens=max_tokens)
        converse(build_service(settings), sampling, stop, system, prompt)
    except DomainError as error:
        fail(error.message)


def converse(
    service: "Service",
    sampling: "SamplingParams",
    stop: "StopRules",
    system: str | None = None,
    prompt: str | None = None,
) -> None:
    """Starts the service, asks once or chats, and stops it in any case. Raises DomainError; Ctrl-C before the chat ends
    it."""
    import asyncio

    from interfaces.cli.commands.chat import Chat
    from interfaces.cli.server.loading import wait_for_model
    from interfaces.cli.terminal.ending import unless_interrupted

    with asyncio.Runner() as runner:
        try:
            runner.run(service.start())
            runner.run(wait_for_model(service))
            chat = Chat(service, sampling, stop, system)
            if prompt is not None:
                if not runner.run(unless_interrupted(chat.ask(prompt, _show))):
                    fail("cancelled", 130)
                typer.echo()
            else:
                _chat_until_the_end(runner, chat, service.settings.model.default)
        except KeyboardInterrupt:
            fail("cancelled", 130)
        finally:
            runner.run(service.stop())


def _chat_until_the_end(runner: "Runner", chat: "Chat", name: str) -> None:
    from domain.errors import DomainError
    from interfaces.cli.terminal.ending import unless_interrupted

    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # gives `input` line editing and history, where Python has it
    typer.echo(f"{name}. Ctrl-C cancels an answer, Ctrl-D ends.", err=True)
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            typer.echo()
            return
        except KeyboardInterrupt:
            typer.echo()
            continue
        if not text:
            continue
        try:
            is_whole = runner.run(unless_interrupted(chat.ask(text, _show)))
            typer.echo("" if is_whole else " [cancelled]")
        except KeyboardInterrupt:
            typer.echo(" [cancelled]")
        except DomainError as error:
            typer.echo(f"cairn: {error.message}", err=True)


def _show(text: str) -> None:
    typer.echo(plain(text), nl=False)
