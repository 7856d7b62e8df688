"""Items that pile up are merged at a cost linear in them; an answer waits for its choices and reads all of them."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import FakeDetokenizer, FakeTokenizer
from application.ports.engine import Ended, EngineError, Tokens
from application.services.text_side.answers import choice
from application.services.text_side.answers.answer import Answer, Progress
from application.services.text_side.answers.answer_grammar import with_answer_grammar
from application.services.text_side.answers.choice import MERGE_ABOVE, Choice, PlainParser
from application.services.text_side.answers.generated_calls import GeneratedCalls
from domain.errors import ComputeFailed, DomainError, RequestCancelled
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, GeneratedCall, Role
from domain.request.grammar import Marker, Reasoning, choice_grammar
from domain.request.reasoning_budget import NO_REASONING, ReasoningLimit
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest, TextPrompt, Usage
from domain.request.sampling import StopRules
from domain.request.stream import (
    ContentDelta,
    Failed,
    Finished,
    PrefillProgress,
    PromptLogprobs,
    ReasoningDelta,
    StreamItem,
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


def plain(rules: StopRules) -> Choice:
    request = GenerationRequest(RequestId("r"), ModelId("m"), TextPrompt("x"), stop=rules)
    return Choice(request, 0, 1, PlainParser(FakeDetokenizer()))


def text_of(deltas: Sequence[StreamItem]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def run(token_ids: bytes | list[int], rules: StopRules, max_new: int, at_once: int) -> tuple[str, int, str | None]:
    """Text, counted tokens and stop string of an answer that the engine ends by EOS or at `max_new`, which tells
    `at_once` tokens at a time."""
    tokens = list(token_ids)[:max_new]
    ends = [
        at + 1
        for at, token in enumerate(tokens)
        if token == EOS_ID and not rules.ignore_eos and at + 1 >= rules.min_tokens
    ]
    tokens = tokens[: ends[0]] if ends else tokens
    choice = plain(rules)
    for start in range(0, len(tokens), at_once):
        told = tuple(tokens[start : start + at_once])
        choice.receive(Tokens(told, has_eos=bool(ends) and start + len(told) == len(tokens)))
    choice.receive(Ended(Usage(1, choice.num_tokens), FinishReason.LENGTH))
    assert isinstance(choice.outcome, Finished)
    return text_of(choice.take()), choice.outcome.usage.completion_tokens, choice.outcome.stop_text


class KeptCalls(GeneratedCalls):
    """Keeps calls in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, GeneratedCall]] = []

    def keep(self, request: GenerationRequest, id: str, call: GeneratedCall) -> None:
        self.calls.append((id, call))


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.CANCELLED])
def test_a_call_is_kept_once_something_follows_it_or_the_answer_ends(reason: FinishReason) -> None:
    kept = KeptCalls()
    deltas = [
        ReasoningDelta("hm"),
        ToolCallDelta(0, "call_1", "f"),
        ToolCallDelta(0, arguments="{}"),
        ToolCallDelta(1, "functions.g:1", "g", "{", is_own_id=False),
    ]
    request = GenerationRequest(RequestId("r"), ModelId("m"), TextPrompt("x"))
    answer = Choice(request, 0, 1, Telling(deltas), kept=kept)
    answer.receive(Tokens((1, 2, 3)))
    assert kept.calls == []
    answer.receive(Tokens((4,)))
    first = ("call_1", GeneratedCall("f", "{}", "hm"))
    assert kept.calls == [first]
    answer.receive(Ended(Usage(1, 4), reason))
    last = ("functions.g:1", GeneratedCall("g", "{", is_own_id=False))
    assert kept.calls == ([first, last] if reason is FinishReason.STOP else [first])


EURO = "€".encode()
STOP = StopRules(stop=("STOP",))


@pytest.mark.parametrize(
    ("token_ids", "rules", "max_new", "expected"),
    [
        pytest.param(b"say STOP now", STOP, 100, ("say ", 8, "STOP"), id="stop string over several tokens"),
        pytest.param(b"say STO", STOP, 7, ("say STO", 7, None), id="held text at the length limit"),
        pytest.param([*b"ST", EOS_ID], STOP, 100, ("ST", 3, None), id="held text at the end of sequence"),
        pytest.param([*b"hi", EOS_ID, *b"more"], StopRules(), 100, ("hi", 3, None), id="end of sequence"),
        pytest.param([*b"hi", EOS_ID, *b"mo"], StopRules(ignore_eos=True), 5, ("himo", 5, None), id="ignore_eos"),
        pytest.param(
            [*b"xSTOP", EOS_ID, *b"ySTOP"], replace(STOP, min_tokens=7), 100, ("xSTOPy", 11, "STOP"), id="min_tokens"
        ),
        pytest.param([*EURO, *EURO[:2]], StopRules(), 5, ("€\ufffd", 5, None), id="unfinished character"),
        pytest.param([*b"a", 0xE2], StopRules(stop=("\ufffd",)), 2, ("a", 2, "\ufffd"), id="stop in the last flush"),
    ],
)
@pytest.mark.parametrize("at_once", [1, 2, 5, 12])
def test_an_answer_ends_as_its_stop_rules_say_however_its_tokens_arrive(
    token_ids: bytes | list[int], rules: StopRules, max_new: int, expected: tuple[str, int, str | None], at_once: int
) -> None:
    assert run(token_ids, rules, max_new, at_once) == expected


def test_a_token_that_ends_the_answer_is_not_shown_whatever_its_text() -> None:
    choice = plain(StopRules())
    choice.receive(Tokens((ord("x"),), has_eos=True))
    assert choice.take() == [TextDelta("", (ord("x"),))]
    assert choice.num_tokens == 1


def test_log_probabilities_stay_with_their_tokens() -> None:
    logprobs = tuple(TokenLogprob(token, -1.0) for token in b"ab")
    choice = plain(StopRules())
    choice.receive(Tokens(tuple(b"ab"), logprobs))
    assert choice.take() == [TextDelta("a", (97,), logprobs[:1]), TextDelta("b", (98,), logprobs[1:])]


CLOSE = (Marker("</think>"),)
FREE = Reasoning(CLOSE, (Marker("<think>"),))
OPENED = Reasoning(CLOSE)
CHANNELLED = Reasoning(CLOSE, (Marker("<think>"),), (Marker("<final>"),))
OFF = {"enable_thinking": False}


class Reasoner(FakeTokenizer):
    """Of a family that reasons before it answers."""

    def __init__(self, reasoning: Reasoning) -> None:
        super().__init__()
        self._reasoning = reasoning

    def reasoning_before(self, prompt_ids: Sequence[int]) -> Reasoning | None:
        return self._reasoning


@pytest.mark.parametrize(
    ("reasoning", "kwargs", "limit", "stands"),
    [
        (FREE, {}, None, True),
        (FREE, {}, ReasoningLimit(1), True),
        (FREE, {}, NO_REASONING, False),
        (FREE, OFF, None, False),
        (OPENED, OFF, NO_REASONING, True),
        (CHANNELLED, OFF, NO_REASONING, True),
    ],
)
def test_none_stands_before_the_form_where_none_was_asked_for_and_none_is_needed(
    reasoning: Reasoning, kwargs: dict[str, bool], limit: ReasoningLimit | None, stands: bool
) -> None:
    prompt = ChatPrompt((ChatMessage(Role.USER, "hi"),), template_kwargs=kwargs)
    form = choice_grammar(["yes", "no"], "x")
    asked = GenerationRequest(RequestId("r"), ModelId("m"), prompt, grammar=form, reasoning=limit)
    grammar = with_answer_grammar(asked, Reasoner(reasoning), (1,)).grammar
    assert grammar is not None
    assert grammar.reasoning == (reasoning if stands else None)
