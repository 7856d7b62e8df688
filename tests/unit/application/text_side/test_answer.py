"""Items that pile up are merged at a cost linear in them; an answer waits for its choices and reads all of them."""

import asyncio
from typing import Any

import pytest

from adapters.fake.tokenizer import FakeDetokenizer
from application.ports.engine import Ended, EngineError
from application.services.text_side.answers.answer import Answer, Progress
from application.services.text_side.answers.generation import MAX_HELD_BYTES, Choice
from application.services.text_side.answers.output_pipeline import OutputPipeline
from application.services.text_side.answers.token_parser import PlainParser
from domain.errors import ComputeFailed, DomainError, RequestCancelled
from domain.ids import RequestId
from domain.request.request import FinishReason, Usage
from domain.request.sampling import StopRules
from domain.request.stream import (
    PrefillProgress,
    PromptLogprobs,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from tests.support.engines.told_engine import ADMITTED, TextSide
from tests.support.patience import PATIENCE_S

SECOND = RequestId("second")


def unread_choice(max_held_bytes: int = MAX_HELD_BYTES) -> Choice:
    return Choice(OutputPipeline(PlainParser(FakeDetokenizer()), StopRules()), Usage(1, 0), max_held_bytes)


class Counted(tuple[int, ...]):
    """Token ids that count how many of them were copied."""

    num_copied = 0

    def __add__(self, other: Any) -> "Counted":
        Counted.num_copied += len(self) + len(other)
        return Counted(tuple(self) + tuple(other))

    def __iter__(self) -> Any:
        Counted.num_copied += len(self)
        return super().__iter__()


def test_merging_what_is_not_read_costs_what_is_in_it() -> None:
    num_tokens = 20_000
    Counted.num_copied = 0
    unread = unread_choice()
    for at in range(num_tokens):
        unread.push(TextDelta("x", Counted((at,))))
    tokens = [token for item in unread.take() if isinstance(item, TextDelta) for token in item.token_ids]
    assert tokens == list(range(num_tokens))
    assert Counted.num_copied <= 10 * num_tokens
    assert unread.take() == []


def test_only_what_can_be_told_together_is_merged() -> None:
    unread = unread_choice()
    for at in range(100):
        unread.push(TextDelta("t", (at,)))
    for delta in (ReasoningDelta("r"), ToolCallDelta(0, "call_1", "f"), ToolCallDelta(0, arguments="{}")):
        unread.push(delta)
    *_, text, reasoning, call = unread.take()
    assert isinstance(text, TextDelta)
    assert reasoning == ReasoningDelta("r")
    assert call == ToolCallDelta(0, "call_1", "f", "{}")


def test_every_kind_of_content_counts_against_the_bound() -> None:
    for delta in (TextDelta("x" * 60), ReasoningDelta("x" * 60), ToolCallDelta(0, arguments="x" * 60)):
        unread = unread_choice(100)
        assert unread.push(delta)
        assert not unread.push(delta)
        assert len(unread.take()) == 1


def test_log_probabilities_of_a_prompt_are_merged_and_count_against_the_bound() -> None:
    score, unread = TokenLogprob(1, -1.0, ((1, -1.0),), 1), unread_choice(20_000)
    sizes = [unread.push(PromptLogprobs((None, score))) for _ in range(100)]
    assert sizes == [True] * 66 + [False] * 34
    told = unread.take()
    assert sum(len(item.scores) for item in told if isinstance(item, PromptLogprobs)) == 132
    assert len(told) == 33


def test_prompts_and_their_choices_are_read_as_one_stream_and_nothing_waits_beside_the_choices() -> None:
    side = TextSide()
    answer = Answer([side.open(num_choices=2), side.open(SECOND)])
    side.say("ab", choice=1)
    side.say("c", id=SECOND)
    assert answer.take() == [(1, TextDelta("a", (97,))), (1, TextDelta("b", (98,))), (2, TextDelta("c", (99,)))]
    assert answer.take() == []
    for where in ({}, {"choice": 1}, {"id": SECOND}):
        assert answer.is_open
        side.end(**where)
        answer.take()
    assert not answer.is_open


def test_items_wait_until_something_comes_and_no_longer_than_asked() -> None:
    async def run() -> None:
        side = TextSide()
        answer = Answer([side.open(), side.open(SECOND)])
        loop = asyncio.get_running_loop()
        assert await answer.items(loop.time()) == []
        waiting = asyncio.create_task(answer.items())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        side.say("x", id=SECOND)
        assert [index for index, _ in await answer.items(loop.time())] == [1]
        side.end()
        side.end(id=SECOND)
        assert [index async for index, _ in answer] == [0, 1]

    asyncio.run(run())


def test_an_answer_is_admitted_once_all_are_or_one_has_begun() -> None:
    async def run() -> None:
        side = TextSide()
        answer = Answer([side.open(), side.open(SECOND)])
        side.tell(ADMITTED)
        await answer.admitted(0)
        assert answer.explanations == [ADMITTED.explanation, None]
        waiting = asyncio.create_task(answer.admitted(PATIENCE_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        side.tell(ADMITTED, id=SECOND)
        await waiting
        assert answer.explanations == [ADMITTED.explanation] * 2
        begun = Answer([side.open(RequestId("third")), side.open(RequestId("fourth"))])
        side.say("x", id=RequestId("fourth"))
        await begun.admitted(PATIENCE_S)
        assert len(begun.take()) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        (Ended(Usage(2, 0), None, EngineError.of(ComputeFailed("broken"))), ComputeFailed),
        (Ended(Usage(2, 0), FinishReason.CANCELLED), RequestCancelled),
    ],
)
def test_what_fails_before_it_begins_is_raised(ended: Ended, error: type[DomainError]) -> None:
    async def run() -> None:
        side = TextSide()
        answer = Answer([side.open(), side.open(SECOND)])
        side.tell(ended, id=SECOND)
        with pytest.raises(error):
            await answer.admitted(PATIENCE_S)

    asyncio.run(run())


def test_progress_is_that_of_the_choice_that_is_furthest_behind() -> None:
    side = TextSide()
    answer = Answer([side.open(), side.open(SECOND)])
    side.tell(ADMITTED)
    assert answer.progress == Progress("queued")
    side.tell(ADMITTED, id=SECOND)
    side.say("x")
    assert answer.progress == Progress("prefill 1/2", 1, 2)
    side.tell(PrefillProgress(2, 2), id=SECOND)
    assert answer.progress == Progress("prefill 2/2", 2, 2)
    side.say("y", id=SECOND)
    assert answer.progress == Progress("working")
