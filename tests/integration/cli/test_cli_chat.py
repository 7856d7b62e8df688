"""A conversation of `cairn run` with a server: history, streaming, cancelling, failing, commands."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from adapters.fake.options import FakeOptions, reply_with
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from interfaces.cli.chat.conversation import Conversation
from interfaces.cli.chat.session import ChatSession, Ended, figures
from interfaces.cli.client.running_server import NoAnswer, RunningServer
from tests.support.http.servers.fake_service import DEFAULT_MODEL, fake_service
from tests.support.processes.cli_process import run_cairn, run_here
from tests.support.processes.gate import Gate

LONG = "Be brief. " * 30
LIMIT = {"max_tokens": 100, "temperature": 0}


def converse(
    options: FakeOptions, talk: Callable[[Conversation], Coroutine[Any, Any, None]], system: str | None = None
) -> None:
    with fake_service(options, reuses=True) as running:
        asyncio.run(talk(Conversation(RunningServer(running.base_url), DEFAULT_MODEL, LIMIT, system)))


def unseen(_text: str, _is_reasoning: bool) -> None:
    pass


def test_every_turn_is_kept_and_has_its_figures():
    pieces: list[str] = []

    async def talk(chat: Conversation) -> None:
        first = await chat.ask("one", lambda text, _is_reasoning: pieces.append(text))
        assert "".join(pieces) == first.text == "Aye."
        second = await chat.ask("two", unseen)
        assert [(one["role"], one["content"]) for one in chat.messages] == [
            ("system", LONG),
            ("user", "one"),
            ("assistant", "Aye."),
            ("user", "two"),
            ("assistant", "Aye."),
        ]
        assert second.prompt_tokens > second.reused_tokens > 0
        assert second.completion_tokens == len("Aye.") + 1
        assert f"{second.reused_tokens} of them reused" in figures(second)

    converse(FakeOptions(reply=reply_with("Aye.")), talk, system=LONG)


def test_a_cancelled_answer_is_kept_as_far_as_it_came():
    gate = Gate("decode", 4)

    async def talk(chat: Conversation) -> None:
        asking = asyncio.create_task(chat.ask("one", unseen))
        await asyncio.to_thread(gate.wait_until_reached)
        asking.cancel()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await asking
        question, answer = chat.history
        assert question == {"role": "user", "content": "one"}
        assert answer["role"] == "assistant"
        assert len(answer["content"]) < 100
        await chat.ask("two", unseen)
        assert len(chat.history) == 4

    converse(FakeOptions(eos_every=0, hook=gate), talk)


def test_a_failed_answer_is_not_kept():
    failures = [ComputeFailed("out of luck")]

    def fail_once(operation: str, sequence: SequenceId | None, count: int) -> None:
        if operation == "decode" and failures:
            raise failures.pop()

    async def talk(chat: Conversation) -> None:
        with pytest.raises(NoAnswer, match="out of luck"):
            await chat.ask("one", unseen)
        assert chat.history == []
        await chat.ask("two", unseen)
        assert len(chat.history) == 2

    converse(FakeOptions(hook=fail_once), talk)


def test_a_refused_question_is_not_kept_nor_is_its_image():
    async def talk(chat: Conversation) -> None:
        chat.images.append(f"data:image/png;base64,{base64.b64encode(b'no image').decode()}")
        with pytest.raises(NoAnswer):
            await chat.ask("What is it?", unseen)
        assert chat.history == chat.images == []
        await chat.ask("one", unseen)

    converse(FakeOptions(), talk)


def test_commands_change_the_conversation(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    saved = tmp_path / "chat.json"
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")

    async def talk(chat: Conversation) -> None:
        session = ChatSession(chat, Console())
        await session.command("/system Be brief.")
        await chat.ask("one", unseen)
        await session.command(f"/save {saved}")
        assert json.loads(saved.read_text()) == {"model": DEFAULT_MODEL, "messages": chat.messages}
        await session.command(f"/save {saved}")
        assert "File exists" in capsys.readouterr().err, "no file is overwritten"
        await session.command("/clear")
        assert chat.messages == [{"role": "system", "content": "Be brief."}]
        await session.command(f"/image {picture}")
        assert chat.images == ["data:image/png;base64,iVBORw0KGgo="]
        await session.command(f"/image {saved}")
        assert "is no PNG, JPEG, GIF or WebP image" in capsys.readouterr().err
        await session.command("/model nobody")
        assert chat.model == DEFAULT_MODEL
        assert f"* {DEFAULT_MODEL} (loaded)" in capsys.readouterr().out
        await session.command("/halp")
        assert "/help lists them" in capsys.readouterr().err
        with pytest.raises(Ended):
            await session.command("/bye")

    converse(FakeOptions(), talk)


def test_the_running_server_is_used_and_named(tmp_path: Path):
    with fake_service(FakeOptions(reply=reply_with("Aye."))) as running:
        port = running.base_url.rsplit(":", 1)[1]
        result = run_here(tmp_path, "run", DEFAULT_MODEL, "one", "--json", CAIRN_SERVER__PORT=port)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["text"] == "Aye."
        assert result.stderr == f"cairn: {DEFAULT_MODEL} at {running.base_url}\n"


def test_a_model_that_the_running_server_lacks_is_loaded_here(tmp_path: Path):
    with fake_service() as running:
        port = running.base_url.rsplit(":", 1)[1]
        result = run_cairn(tmp_path, "run", "no-such-model", "one", CAIRN_SERVER__PORT=port)
        assert result.returncode == 1
        loading, refused = result.stderr.splitlines()
        assert loading == f"cairn: the server at {running.base_url} does not have it; this process loads no-such-model"
        assert refused.startswith("cairn: no model 'no-such-model' here")
