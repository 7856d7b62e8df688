"""Items that pile up are merged at a cost linear in them; an answer waits for its choices and reads all of them."""

import asyncio
from collections.abc import Iterable, Sequence

import pytest

from application.ports.engine import Ended, EngineError, Tokens
from application.services.text_side.answers import choice
from application.services.text_side.answers.answer import Answer, Progress
from application.services.text_side.answers.choice import MERGE_ABOVE, Choice
from domain.errors import ComputeFailed, DomainError, RequestCancelled
from domain.ids import ModelId, RequestId
from domain.request.request import FinishReason, GenerationRequest, TextPrompt, Usage
from domain.request.stream import (
    ContentDelta,
    Failed,
    PrefillProgress,
    PromptLogprobs,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from tests.support.engines.scripted_engine import ADMITTED, TextSide
from tests.support.patience import PATIENCE_S

SECOND = RequestId("second")


def opened(side: TextSide) -> Answer:
    """Of two prompts."""
    return side.open(SECOND, answer=side.open())


class Telling:
    """An OutputParser that gives one delta a token."""

    def __init__(self, deltas: Iterable[ContentDelta]) -> None:
        self._deltas = iter(deltas)

    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        return (next(self._deltas),)

    def finish(self) -> Sequence[ContentDelta]:
        return ()


def taking(deltas: Sequence[ContentDelta]) -> Choice:
    """A choice that has got these, and nothing of it was read."""
    taken = Choice(GenerationRequest(RequestId("r"), ModelId("m"), TextPrompt("x")), 0, 1, Telling(deltas))
    taken.receive(Tokens(tuple(range(len(deltas)))))
    return taken


def test_merging_what_is_not_read_costs_what_is_in_it() -> None:
    num_tokens = 20_000
    unread = taking([TextDelta("x")] * num_tokens)
    taken = unread.take()
    assert len(taken) == MERGE_ABOVE + 1
    tokens = [token for item in taken if isinstance(item, TextDelta) for token in item.token_ids]
    assert tokens == list(range(num_tokens))
    assert unread.take() == []


def test_only_deltas_of_one_kind_are_merged() -> None:
    calls = [ToolCallDelta(0, "call_1", "f"), ToolCallDelta(0, arguments="{}")]
    *_, text, reasoning, call = taking([*[TextDelta("t")] * 100, ReasoningDelta("r"), *calls]).take()
    assert isinstance(text, TextDelta)
    assert reasoning == ReasoningDelta("r", (100,))
    assert call == ToolCallDelta(0, "call_1", "f", "{}", (101, 102))


def test_every_kind_of_content_counts_against_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_HELD_BYTES", 200)
    for delta in (TextDelta("x" * 60), ReasoningDelta("x" * 60), ToolCallDelta(0, arguments="x" * 60)):
        assert [type(item) for item in taking([delta]).take()] == [type(delta)]
        assert [type(item) for item in taking([delta] * 2).take()] == [Failed]


def test_log_probabilities_of_a_prompt_are_merged_and_count_against_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_HELD_BYTES", 20_000)
    score, unread = TokenLogprob(1, -1.0, ((1, -1.0),), 1), taking([])
    for _ in range(66):
        unread.receive(PromptLogprobs((None, score)))
    taken = unread.take()
    assert sum(len(item.scores) for item in taken if isinstance(item, PromptLogprobs)) == 132
    assert len(taken) == MERGE_ABOVE + 1
    for _ in range(67):
        unread.receive(PromptLogprobs((None, score)))
    assert isinstance(unread.outcome, Failed)


def test_prompts_and_their_choices_are_read_as_one_stream_and_nothing_waits_beside_the_choices() -> None:
    side = TextSide()
    answer = side.open(SECOND, answer=side.open(num_choices=2))
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
        answer = opened(side)
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
        answer = opened(side)
        side.tell(ADMITTED)
        await answer.admitted(0)
        assert answer.explanations == [ADMITTED.explanation, None]
        waiting = asyncio.create_task(answer.admitted(PATIENCE_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        side.tell(ADMITTED, id=SECOND)
        await waiting
        assert answer.explanations == [ADMITTED.explanation] * 2
        begun = side.open(RequestId("fourth"), answer=side.open(RequestId("third")))
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
        answer = opened(side)
        side.tell(ended, id=SECOND)
        with pytest.raises(error):
            await answer.admitted(PATIENCE_S)

    asyncio.run(run())


def test_progress_is_that_of_the_choice_that_is_furthest_behind() -> None:
    side = TextSide()
    answer = opened(side)
    side.tell(ADMITTED)
    assert answer.progress == Progress("queued")
    side.tell(ADMITTED, id=SECOND)
    side.say("x")
    assert answer.progress == Progress("prefill 1/2", 1, 2)
    side.tell(PrefillProgress(2, 2), id=SECOND)
    assert answer.progress == Progress("prefill 2/2", 2, 2)
    side.say("y", id=SECOND)
    assert answer.progress == Progress("working")
