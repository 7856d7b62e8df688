"""A chat in the terminal: questions, commands that begin with a slash, and answers."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from domain.printable import printable
from interfaces.cli.chat.answer_view import AnswerView
from interfaces.cli.chat.conversation import Answer, Conversation
from interfaces.cli.client.running_server import NoAnswer
from interfaces.cli.client.served_models import chat_models
from interfaces.cli.terminal.ending import unless_interrupted

if TYPE_CHECKING:
    from rich.console import Console

MAX_IMAGE_BYTES = 32 * 2**20
MAX_LINE_BYTES = 2**16

_IMAGE_TYPES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}


class Ended(Exception):
    """The user ends the chat."""


class ChatSession:
    """The chat. `is_verbose`: print figures under each answer. Event loop only."""

    def __init__(self, conversation: Conversation, console: "Console", *, is_verbose: bool = False) -> None:
        self._conversation = conversation
        self._console = console
        self._is_verbose = is_verbose
        self._commands: Mapping[str, tuple[str, Callable[[str], Awaitable[None]]]] = {
            "/model": ("NAME: continue with another model; without a name, list them", self._model),
            "/system": ("TEXT: set the system prompt; without a text, show it", self._system),
            "/image": ("PATH: show an image with the next question", self._image),
            "/clear": ("forget the conversation, not the system prompt", self._clear),
            "/save": ("FILE: write the conversation as JSON", self._save),
            "/help": ("show this list", self._help),
            "/bye": ("end the chat, as Ctrl-D does", self._bye),
        }

    async def run(self) -> None:
        """Asks until the input ends."""
        ask = self._prompt()
        while True:
            try:
                text = (await ask()).strip()
                if text.startswith("/"):
                    await self.command(text)
                elif text:
                    await self.answer(text)
            except (EOFError, Ended):
                return
            except KeyboardInterrupt:
                typer.echo()
            except NoAnswer as why:
                typer.echo(f"cairn: {why}", err=True)

    async def answer(self, text: str) -> Answer | None:
        """Asks and shows the answer; None if it was cancelled by Ctrl-C. Raises NoAnswer."""
        view = AnswerView(self._console)
        asking = asyncio.ensure_future(self._conversation.ask(text, view.show))
        try:
            is_whole = await unless_interrupted(_waiting(asking))
        finally:
            view.finish()
        if not is_whole:
            typer.echo("[cancelled]", err=not self._console.is_terminal)
            return None
        answer = asking.result()
        if self._is_verbose:
            typer.echo(figures(answer), err=True)
        return answer

    def _prompt(self) -> Callable[[], Awaitable[str]]:
        """The function that asks for a question: with editing and history where the terminal allows. It raises EOFError
        and KeyboardInterrupt."""
        if self._console.is_dumb_terminal or not self._console.is_terminal:
            return _plain_line
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.shortcuts import CompleteStyle

        keys = KeyBindings()

        def add_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        keys.add("escape", "enter")(add_line)
        words = WordCompleter(list(self._commands), sentence=True)
        session: PromptSession[str] = PromptSession(
            "> ",
            completer=words,
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            reserve_space_for_menu=0,
            key_bindings=keys,
        )
        return session.prompt_async

    # ---- commands ---------------------------------------------------------------------------------------------------

    async def command(self, text: str) -> None:
        """Runs a command that begins with a slash. Raises Ended and NoAnswer."""
        name, _, argument = text.partition(" ")
        if name not in self._commands:
            typer.echo(f"cairn: there is no command {printable(name)}; /help lists them", err=True)
            return
        await self._commands[name][1](argument.strip())

    async def _model(self, name: str) -> None:
        listed = await chat_models(self._conversation.server)
        if name and name in listed:
            self._conversation.model = name
            return
        if name:
            typer.echo(f"cairn: the server has no model {printable(name)} that chats; it has:", err=True)
        for id, state in listed.items():
            typer.echo(f"{'*' if id == self._conversation.model else ' '} {printable(id)} ({state})")

    async def _system(self, text: str) -> None:
        if text:
            self._conversation.system = text
        else:
            typer.echo(self._conversation.system or "there is no system prompt")

    async def _image(self, path: str) -> None:
        try:
            self._conversation.images.append(image_url(path))
        except ValueError as error:
            typer.echo(f"cairn: {error}", err=True)

    async def _clear(self, _argument: str) -> None:
        self._conversation.history.clear()
        self._conversation.images.clear()

    async def _save(self, path: str) -> None:
        if not path:
            typer.echo("cairn: /save FILE needs the name of a file", err=True)
            return
        content = {"model": self._conversation.model, "messages": self._conversation.messages}
        try:
            _write_new(Path(path), json.dumps(content, ensure_ascii=False, indent=2))
        except OSError as error:
            typer.echo(f"cairn: {printable(path)} cannot be written: {error.strerror or error}", err=True)

    async def _help(self, _argument: str) -> None:
        for name, (does, _) in self._commands.items():
            typer.echo(f"{name:<8} {does}")
        typer.echo("Alt-Enter begins a new line, Ctrl-C cancels an answer")

    async def _bye(self, _argument: str) -> None:
        raise Ended


async def _plain_line() -> str:
    """A line of a terminal that can do nothing but print."""
    typer.echo("> ", nl=False)
    loop = asyncio.get_running_loop()
    line: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(os.read(0, MAX_LINE_BYTES))

    loop.add_reader(0, read)
    try:
        if not await unless_interrupted(_waiting(line)):
            raise KeyboardInterrupt
    finally:
        loop.remove_reader(0)
    if not line.result():
        typer.echo()
        raise EOFError
    return line.result().decode(errors="replace")


async def _waiting(work: "asyncio.Future[Any]") -> None:
    await work


def _write_new(file: Path, text: str) -> None:
    with file.expanduser().open("x", encoding="utf-8") as opened:
        opened.write(text)


def image_url(path: str) -> str:
    """An image file as a data URL. Raises ValueError."""
    from base64 import b64encode

    file = Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_IMAGE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{printable(path)} cannot be read: {error.strerror or error}") from None
    kind = next((kind for magic, kind in _IMAGE_TYPES.items() if content.startswith(magic)), None)
    if kind is None:
        raise ValueError(f"{printable(path)} is no PNG, JPEG, GIF or WebP image")
    if len(content) > MAX_IMAGE_BYTES:
        raise ValueError(f"{printable(path)} is larger than {MAX_IMAGE_BYTES >> 20} MiB")
    return f"data:image/{kind};base64,{b64encode(content).decode()}"


def figures(answer: Answer) -> str:
    """The figures of an answer in a line."""
    reused, prompt = answer.reused_tokens, answer.prompt_tokens
    parts = [f"prompt: {prompt} tokens, {reused} of them reused", f"answer: {answer.completion_tokens} tokens"]
    if answer.first_token_s is not None:
        parts.append(f"first token after {answer.first_token_s:.2f} s")
    if answer.tokens_per_s is not None:
        parts.append(f"then {answer.tokens_per_s:.1f} tokens/s")
    return "; ".join(parts)
