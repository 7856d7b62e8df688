"""The text side of the port, given by hand what an engine would send: text, ends, slow readers, places, telemetry."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from adapters.fake.environment import FakeIds
from adapters.fake.tokenizer import FakeDetokenizer, FakeTokenizer
from adapters.fake.vision import ToyImages, toy_image
from application.events import DecodeStarted, FaultObserved, RequestEnded, RequestRefused
from application.ports.engine import Ended, EngineError, ImageWanted, Tokens
from application.ports.tokenizer import OutputParser
from application.ports.vision import PreparedImage
from application.services.text_side.answers import choice
from application.services.text_side.answers.choice import MERGE_ABOVE, PlainParser
from application.services.text_side.answers.prompt_images import WantedImages
from domain.errors import InvalidRequest, QueueFull, RequestCancelled, RequestNotFound, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.grammar import Grammar, GrammarKind
from domain.request.repetition import Repetition, RepetitionDetection
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest, TextPrompt, Usage
from domain.request.sampling import StopRules
from domain.request.stream import ContentDelta, Failed, Finished, PrefillProgress, TextDelta
from tests.support.engines.scripted_engine import ADMITTED, ID, TextSide, text_of


def ends(side: TextSide) -> list[tuple[str, str, Usage]]:
    return [(event.id, event.reason, event.usage) for event in side.recorded.of(RequestEnded)]


def test_a_stop_string_ends_its_choice_at_once_and_what_was_computed_beyond_is_dropped() -> None:
    side = TextSide()
    answer = side.open(rules=StopRules(stop=("STOP",)), num_choices=2)
    side.tell(ADMITTED)
    side.say("one STOP and more")
    assert side.engine.cancelled == [(ID, 0, FinishReason.STOP, 8)]
    finished = Finished(FinishReason.STOP, Usage(2, 8, {"hot": 1}), "STOP")
    items = answer.take()
    assert text_of(items) == "one "
    assert items[-1] == (0, finished)
    assert ends(side) == []  # the engine has not ended it yet
    side.say("even more")
    side.end(num_tokens=99)  # it had come to its end before it heard of it
    assert answer.take() == []
    assert ends(side) == [(ID, "stop", finished.usage)]
    assert (side.num_released, side.requests.num_open) == (0, 1)  # the other choice runs on
    side.end(FinishReason.STOP, choice=1)
    assert (side.num_released, side.requests.num_open) == (1, 0)


def test_the_lease_ends_when_all_choices_have_though_nobody_has_read() -> None:
    side = TextSide()
    answer = side.open(num_choices=2)
    side.end()
    assert side.num_released == 0
    side.end(choice=1)
    assert side.num_released == 1
    answer.close()
    assert (side.num_released, side.engine.cancelled) == (1, [])


def test_a_client_that_leaves_cancels_all_choices_and_its_cost_is_reported_when_it_is_known() -> None:
    side = TextSide()
    answer = side.open(num_choices=2)
    side.say("ab")
    answer.close()
    answer.close()
    assert side.engine.cancelled == [(ID, None, FinishReason.CANCELLED, None)]
    assert (side.requests.num_read, side.requests.num_open, side.num_released) == (0, 1, 1)
    side.say("cd")
    side.end(FinishReason.CANCELLED, num_tokens=4)
    side.end(FinishReason.CANCELLED, choice=1)
    assert ends(side) == [(ID, "cancelled", Usage(2, 4, {"hot": 1})), (f"{ID}.1", "cancelled", Usage(2, 0, {"hot": 1}))]
    assert side.requests.num_open == 0


def test_a_slow_reader_gets_merged_text_and_loses_nothing() -> None:
    side = TextSide()
    answer = side.open()
    side.tell(*(PrefillProgress(done, 500) for done in range(500)))
    side.tell(*(Tokens((97 + at % 26,)) for at in range(1_000)))
    side.end(num_tokens=1_000)
    items = answer.take()
    assert len(items) <= MERGE_ABOVE + 4
    tokens = [token for _, item in items if isinstance(item, TextDelta) for token in item.token_ids]
    assert tokens == [97 + at % 26 for at in range(1_000)]
    assert (0, PrefillProgress(499, 500)) in items


def test_a_choice_that_is_never_read_fails_at_its_bound_and_holds_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_HELD_BYTES", 10_000)
    side = TextSide()
    answer = side.open(num_choices=2)
    side.say("x" * 1_000)
    side.say("y", choice=1)
    assert side.engine.cancelled == [(ID, 0, FinishReason.CANCELLED, None)]
    (zero, failed), *others = answer.take()
    assert zero == 0
    assert isinstance(failed, Failed)
    assert "not read" in failed.error.message
    assert [number for number, _ in others] == [1]
    side.end(FinishReason.CANCELLED)
    assert [reason for _, reason, _ in ends(side)] == ["error"]


def test_an_answer_that_is_read_may_be_longer_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MAX_HELD_BYTES", 10_000)
    side = TextSide()
    answer = side.open()
    num_read = 0
    for _ in range(40):
        side.say("x" * 50)
        num_read += len(text_of(answer.take()))
    assert num_read == 40 * 50


def names(side: TextSide) -> list[str]:
    """The names of the events except those of every request and step."""
    told = (type(event).__name__ for event in side.recorded.events)
    return [name for name in told if name not in ("RequestQueued", "TokensReceived")]


class BrokenParser:
    def feed(self, token_id: int) -> list[ContentDelta]:
        raise UnicodeError(f"token {token_id} is no text")

    def finish(self) -> list[ContentDelta]:
        raise UnicodeError("nor is the end")


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_parser_that_raises_costs_its_choice_alone(num_tokens: int) -> None:
    side = TextSide()
    broken, sound = side.open(parser=BrokenParser), side.open(RequestId("s"))
    side.say("x" * num_tokens)
    side.end()
    side.say("y", id=RequestId("s"))
    (last,) = broken.take()
    assert isinstance(last[1], Failed)
    assert [reason for _, reason, _ in ends(side)] == ["error"]
    assert text_of(sound.take()) == "y"
    assert names(side) == ["FaultObserved", "RequestEnded"]
    assert side.requests.num_open == 1
    faults = [event.message for event in side.recorded.of(FaultObserved)]
    messages = [event.error_message for event in side.recorded.of(RequestEnded)]
    for told in (*faults, *messages, last[1].error.message):
        assert "UnicodeError" in told
        assert f"{Path(__file__).name}:" in told
        assert "is no text" not in told, "what an error says may quote what was said"
        assert "nor is" not in told


def test_an_error_of_the_engine_is_the_clients_error() -> None:
    side = TextSide()
    answer = side.open()
    side.tell(Ended(Usage(2, 0), None, EngineError("ServerUnavailable", "it was unloaded")))
    ((_, failed),) = answer.take()
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ServerUnavailable)
    (event,) = side.recorded.of(RequestEnded)
    assert (event.reason, event.error_code, event.error_message) == ("error", "server_unavailable", "it was unloaded")


def fake_parser() -> OutputParser:
    prompt = ChatPrompt((ChatMessage(Role.USER, "hi"),), TOOLS)
    return FakeTokenizer().output_parser(prompt, (), FakeIds().call_id)


TOOLS = (ToolSpec("add", parameters={"type": "object", "required": ["a"]}),)


def test_an_answer_with_calls_ends_with_them_and_what_is_wrong_with_them_is_reported() -> None:
    side = TextSide()
    answer = side.open(parser=fake_parser, tools=TOOLS)
    side.say("<call>add {}</call><call>sub {}</call>")
    side.end(FinishReason.STOP, num_tokens=9)
    (_, last) = answer.take()[-1]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.TOOL_CALLS
    kinds = ("schema_mismatch", "unknown_tool")
    assert tuple(problem.kind.value for problem in last.call_problems) == kinds
    (parsing,) = [event.parsing for event in side.recorded.of(RequestEnded)]
    assert parsing is not None
    assert (parsing.num_calls, parsing.problems, parsing.has_failed) == (2, kinds, False)
    assert [reason for _, reason, _ in ends(side)] == ["tool_calls"]


def test_a_call_that_the_length_cuts_ends_with_the_length() -> None:
    side = TextSide()
    answer = side.open(parser=fake_parser, tools=TOOLS)
    side.say('<call>add {"a')
    side.end(FinishReason.LENGTH)
    (_, last) = answer.take()[-1]
    assert isinstance(last, Finished)
    assert last.reason is FinishReason.LENGTH
    assert [problem.kind.value for problem in last.call_problems] == ["malformed_arguments"]


def test_a_requests_end_is_reported_after_everything_else_of_its_batch() -> None:
    side = TextSide()
    side.open()
    side.end(events=(DecodeStarted(ID, 4),))
    assert names(side) == ["DecodeStarted", "RequestEnded"]


def test_places_are_taken_all_or_none_and_given_back_as_the_engine_says() -> None:
    side = TextSide(max_queue=4)
    side.requests.reserve(3)
    with pytest.raises(QueueFull):
        side.requests.reserve(2)
    side.requests.reserve(1)
    side.tell(num_left_queue=3)
    assert side.requests.num_waiting == 1
    side.engine.is_alive = False
    with pytest.raises(ServerUnavailable, match="gone"):
        side.requests.reserve(1)
    assert side.requests.num_waiting == 1


def test_a_request_that_fails_before_its_submission_gives_its_places_back_and_is_reported() -> None:
    side = TextSide(max_queue=2)

    async def enter() -> None:
        request = GenerationRequest(RequestId("s"), ModelId("m"), TextPrompt("x"), num_choices=2)
        async with side.requests.entering(request, side.open()) as entered:
            assert entered.arrived_ns is not None
            assert (side.requests.num_waiting, len(side.requests.preparations())) == (2, 1)
            raise InvalidRequest("it is too long")

    with pytest.raises(InvalidRequest, match="too long"):
        asyncio.run(enter())
    assert (side.requests.num_waiting, side.requests.preparations()) == (0, [])
    assert [event.error_code for event in side.recorded.of(RequestRefused)] == [InvalidRequest.code]


def test_what_comes_for_a_request_that_is_unknown_is_dropped() -> None:
    side = TextSide()
    side.say("x", id=RequestId("nobody"))
    side.end(id=RequestId("nobody"))
    assert side.recorded.events == []


def prepared(side: TextSide) -> "asyncio.Task[str]":
    """A request that is being prepared until it is cancelled."""

    async def prepare() -> str:
        try:
            with side.requests.prepare(GenerationRequest(ID, ModelId("demo"), TextPrompt("x")), 5):
                await asyncio.Event().wait()
        except RequestCancelled:
            await asyncio.sleep(0)  # nothing of the cancellation is left
            return "cancelled"
        return "ended"

    return asyncio.create_task(prepare())


def test_a_request_that_is_prepared_is_listed_and_cancelled() -> None:
    async def run() -> None:
        side = TextSide()
        task = prepared(side)
        await asyncio.sleep(0)
        (preparation,) = side.requests.preparations()
        assert (preparation.request.id, preparation.started_ns, preparation.has_model) == (ID, 5, False)
        side.requests.cancel(ID)
        side.requests.cancel(ID)  # once more changes nothing
        assert (await task, task.cancelling()) == ("cancelled", 0)
        assert side.requests.preparations() == []
        with pytest.raises(RequestNotFound):
            side.requests.cancel(ID)

    asyncio.run(run())


@pytest.mark.parametrize("is_cancelled_too", [False, True])
def test_a_client_that_leaves_a_preparation_is_no_error(is_cancelled_too: bool) -> None:
    async def run() -> None:
        side = TextSide()
        task = prepared(side)
        await asyncio.sleep(0)
        if is_cancelled_too:
            side.requests.cancel(ID)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert side.requests.preparations() == []

    asyncio.run(run())


def test_what_the_engine_wants_of_an_image_is_answered_in_every_case() -> None:
    cat = ToyImages().process(toy_image(2, 2, "cat")).prepared

    class Images:
        async def prepare(self, digest: bytes) -> PreparedImage:
            if digest == b"refused":
                raise InvalidRequest("the image cannot be used", param="there")
            return {b"sound": cat}[digest]

    async def run() -> None:
        side = TextSide()
        side.open(images=cast(WantedImages, Images()))
        side.tell(*(ImageWanted(digest) for digest in (b"sound", b"refused", b"broken", b"sound")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = [(*where, image) for *where, image in side.engine.provided]
        assert [(model, salt, digest) for model, salt, digest, _ in found] == [
            ("m", "", digest) for digest in (b"sound", b"refused", b"broken", b"sound")
        ]
        (_, _, _, image), (_, _, _, refusal), (_, _, _, defect), (_, _, _, again) = found
        assert image == again == cat
        assert (refusal.kind, refusal.param) == ("InvalidRequest", "there")
        assert defect.kind == "ComputeFailed"
        assert [event.where for event in side.recorded.of(FaultObserved)] == ["text.images"]

    asyncio.run(run())


REPEATED = StopRules(repetition=RepetitionDetection(8, min_count=4, min_tokens=0))


def test_an_answer_that_repeats_itself_ends_with_its_length_and_the_cause() -> None:
    side = TextSide()
    answer = side.open(rules=REPEATED)
    side.tell(ADMITTED)
    side.say("so abababab and more")
    assert side.engine.cancelled == [(ID, 0, FinishReason.STOP, 11)]
    finished = Finished(FinishReason.LENGTH, Usage(2, 11, {"hot": 1}), repetition=Repetition(2, 4))
    items = answer.take()
    assert text_of(items) == "so abababab"
    assert items[-1] == (0, finished)
    side.end(num_tokens=99)
    assert ends(side) == [(ID, "length", finished.usage)]
    (parsing,) = [event.parsing for event in side.recorded.of(RequestEnded)]
    assert parsing is not None
    assert parsing.repeated_tokens == 2


@pytest.mark.parametrize(
    "rules",
    [
        StopRules(),
        StopRules(repetition=RepetitionDetection()),
        replace(REPEATED, min_tokens=12),
        StopRules(repetition=RepetitionDetection(8, min_tokens=9)),
    ],
)
def test_a_repetition_that_is_not_to_be_detected_ends_nothing(rules: StopRules) -> None:
    side = TextSide()
    answer = side.open(rules=rules)
    side.say("abababab and more")
    assert text_of(answer.take()) == "abababab and more"
    assert side.engine.cancelled == []


def test_arguments_may_repeat_and_a_pattern_does_not_reach_over_a_call() -> None:
    side = TextSide()
    answer = side.open(parser=fake_parser, tools=TOOLS, rules=REPEATED)
    side.say('ababab<call>add {"a": "' + "0" * 50 + '"}</call>ab')
    assert side.engine.cancelled == []
    side.say("ababab")
    (_, last) = answer.take()[-1]
    assert isinstance(last, Finished)
    assert (last.reason, last.repetition) == (FinishReason.LENGTH, Repetition(2, 4))


class HeldParser(PlainParser):
    """Holds the first eight tokens back, as a format does until it knows a call by its beginning."""

    def __init__(self) -> None:
        super().__init__(FakeDetokenizer())
        self._held: list[ContentDelta] = []

    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        self._held += super().feed(token_id)
        return () if len(self._held) < 9 else super().feed(token_id)


def test_tokens_that_are_held_back_end_nothing() -> None:
    side = TextSide()
    side.open(parser=HeldParser, rules=REPEATED)
    side.say("00000000")
    assert side.engine.cancelled == []
    side.say("0")
    assert side.engine.cancelled == [(ID, 0, FinishReason.STOP, 9)]


def test_an_answer_with_a_grammar_may_repeat_itself() -> None:
    grammar = Grammar(GrammarKind.REGEX, "[01]*")
    request = GenerationRequest(ID, ModelId("m"), TextPrompt("x"), stop=REPEATED, grammar=grammar)
    one = choice.Choice(request, 0, 1, PlainParser(FakeDetokenizer()))
    one.receive(Tokens(tuple(b"0" * 99)))
    assert one.outcome is None
