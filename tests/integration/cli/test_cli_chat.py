"""A conversation in the terminal: history, streaming, cancelling, failing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.options import FakeOptions, reply_with
from adapters.fake.tokenizer import FakeTokenizers
from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.errors import ComputeFailed, InvalidRequest
from domain.ids import SequenceId
from domain.request.chat import ChatMessage, Role
from domain.request.sampling import SamplingParams, StopRules
from interfaces.cli.commands.chat import Chat
from interfaces.composition.backends import Backend
from interfaces.composition.service import build_service
from tests.support.processes.gate import Gate


def converse(
    options: FakeOptions, talk: Callable[[Chat], Awaitable[None]], max_tokens: int = 100, system: str | None = None
) -> None:
    """Run `talk` on a service of its own, and check that nothing is left of it."""
    settings = Settings(
        model=ModelSettings(default="fake-attention"),
        engine=EngineSettings(backend="fake"),
        store=StoreSettings(kind="off"),
    )
    engine = FakeEngine(default=options)
    backend = Backend(lambda: engine, FakeModels(), FakeTokenizers(), default_grid=256)
    service = build_service(settings, backend=backend)

    async def main() -> None:
        await service.start()
        try:
            await service.ready()
            await talk(Chat(service, SamplingParams(temperature=0), StopRules(max_tokens=max_tokens), system))
        finally:
            assert await service.stop(20)

    asyncio.run(main())
    assert not any(model.open_ids() for model in engine.loaded)


def test_every_turn_is_kept():
    pieces: list[str] = []

    async def talk(chat: Chat) -> None:
        await chat.ask("one", pieces.append)
        assert "".join(pieces) == "Aye."
        await chat.ask("two", pieces.append)
        assert chat.history == [
            ChatMessage(Role.SYSTEM, "Be brief."),
            ChatMessage(Role.USER, "one"),
            ChatMessage(Role.ASSISTANT, "Aye."),
            ChatMessage(Role.USER, "two"),
            ChatMessage(Role.ASSISTANT, "Aye."),
        ]

    converse(FakeOptions(reply=reply_with("Aye.")), talk, system="Be brief.")


def test_a_cancelled_answer_is_kept_as_far_as_it_came():
    gate = Gate("decode", 4)

    async def talk(chat: Chat) -> None:
        asking = asyncio.create_task(chat.ask("one", str))
        await asyncio.to_thread(gate.wait_until_reached)
        asking.cancel()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await asking
        question, answer = chat.history
        assert question == ChatMessage(Role.USER, "one")
        assert answer.role is Role.ASSISTANT
        assert len(answer.content) < 100
        await chat.ask("two", str)
        assert len(chat.history) == 4

    converse(FakeOptions(eos_every=0, hook=gate), talk)


def test_a_failed_answer_is_not_kept():
    failures = [ComputeFailed("out of luck")]

    def fail_once(operation: str, sequence: SequenceId | None, count: int) -> None:
        if operation == "decode" and failures:
            raise failures.pop()

    async def talk(chat: Chat) -> None:
        with pytest.raises(ComputeFailed, match="out of luck"):
            await chat.ask("one", str)
        assert chat.history == []
        await chat.ask("two", str)
        assert len(chat.history) == 2

    converse(FakeOptions(hook=fail_once), talk)


def test_a_refused_question_is_not_kept():
    async def talk(chat: Chat) -> None:
        with pytest.raises(InvalidRequest, match="context"):
            await chat.ask("x" * 1000, str)
        assert chat.history == []

    converse(FakeOptions(context_length=500), talk)
