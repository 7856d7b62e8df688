"""Compiling a grammar takes time, and delays no other request."""

import asyncio
from dataclasses import replace

import pytest

import adapters.llguidance.compiler as constraint_module
from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import fake_vocabulary
from adapters.llguidance.compiler import LlguidanceCompiler
from domain.errors import ComputeFailed
from domain.ids import ModelId
from domain.models.model_card import ModelSource, Vocabulary
from domain.request.grammar import choice_grammar, json_object_grammar
from domain.request.request import FinishReason
from domain.request.stream import Finished, StreamItem
from interfaces.composition.service import Service, build_service
from tests.support.http.servers.live_service import answers, asking, settings_of
from tests.support.patience import PATIENCE_S
from tests.support.processes.held_workers import HeldWorkers
from tests.support.text.toy_constraints import FakeCompiler

SOURCE = ModelSource(ModelId("toy"), "fake:toy")


async def _items(service: Service, number: int, *, is_held: bool) -> list[StreamItem]:
    grammar = choice_grammar(["yes", "no"], "x") if is_held else None
    async with service.container.generate().answering([asking(number, grammar)]) as answer:
        return [item async for _, item in answer]


def test_others_are_answered_while_a_grammar_is_compiled():
    workers = HeldWorkers()
    service = build_service(settings_of(), constraints=FakeCompiler(workers))

    async def main() -> None:
        await service.start()
        try:
            await service.ready()
            held = asyncio.create_task(_items(service, 1, is_held=True))
            for number in range(2, 5):
                items = await asyncio.wait_for(_items(service, number, is_held=False), PATIENCE_S)
                assert isinstance(items[-1], Finished)
            assert not held.done()
            workers.release()
            last = (await asyncio.wait_for(held, PATIENCE_S))[-1]
            assert isinstance(last, Finished)
            assert last.reason is FinishReason.STOP
        finally:
            assert await service.stop(PATIENCE_S)

    asyncio.run(main())


def test_a_request_may_leave_while_its_grammar_is_compiled():
    workers = HeldWorkers()
    service = build_service(settings_of(), constraints=FakeCompiler(workers))

    async def main() -> None:
        await service.start()
        try:
            await service.ready()
            async with service.container.generate().answering([asking(1, choice_grammar(["yes"], "x"))]):
                pass
            items = await asyncio.wait_for(_items(service, 2, is_held=False), PATIENCE_S)
            assert isinstance(items[-1], Finished)
            workers.release()
        finally:
            assert await service.stop(PATIENCE_S)

    asyncio.run(main())


class NoEnd(LlguidanceCompiler):
    """A compiler that is given vocabularies which the library refuses."""

    def attach(self, id: ModelId, vocabulary: Vocabulary | None) -> None:
        super().attach(id, replace(fake_vocabulary(), eos_token_ids=frozenset()))


def test_a_grammar_that_fails_to_compile_is_its_requests_failure():
    workers = HeldWorkers()
    workers.release()
    requests = [asking(1, None), asking(2, json_object_grammar()), asking(3, None)]
    first, failed, last = answers(requests, constraints=NoEnd(workers))
    assert isinstance(failed.error, ComputeFailed)
    assert "no token that ends an answer" in failed.error.message
    assert first.error is None
    assert last.error is None


def test_an_engine_without_constraints_says_so():
    free, failed = answers([asking(1, None), asking(2, json_object_grammar())], constraints=None)
    assert free.error is None
    assert isinstance(failed.error, ComputeFailed)


def test_a_compilation_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constraint_module, "COMPILE_TIMEOUT_S", -1.0)
    compiler = LlguidanceCompiler(HeldWorkers())
    compiler.attach(SOURCE.id, fake_vocabulary())
    constraint = compiler.compile(SOURCE.id, json_object_grammar(), frozenset({EOS_ID}))
    for _ in range(2):
        with pytest.raises(ComputeFailed, match="compiling"):
            constraint.allowed()
    assert constraint.poll()
