"""What a compaction replaces, keeps and hides nothing of, and its events."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from domain.errors import InvalidRequest
from domain.request.chat import CallMode, ChatMessage, Role, ToolCall
from domain.request.reasoning_budget import NO_REASONING
from domain.request.request import ChatPrompt, FinishReason
from domain.request.stream import ReasoningDelta, TextDelta
from interfaces.http.responses.answer import ResponseFraming, response_body
from interfaces.http.responses.compaction import (
    CUT_OFF,
    INSTRUCTION,
    MAX_TOKENS,
    OPENING,
    Compacting,
    Compaction,
    NoSummary,
    Seal,
)
from interfaces.http.responses.conversation import compacting, conversation
from interfaces.http.responses.request import ResponsesRequest, chat_prompt, with_fields
from tests.support.http.golden import ADMITTED, HELLO, THOUGHT, Step, collected, ended, started, transcript
from tests.support.http.official import event_problem
from tests.support.telemetry.named_events import named_events
from tests.unit.interfaces.http.test_lenient_fields import CONTEXT
from tests.unit.interfaces.http.test_open_responses import EVENTS, problems

SEAL = Seal("m", "alice")
TRIGGER: dict[str, Any] = {"type": "compaction_trigger"}
TOOL = {"type": "function", "name": "read", "parameters": {"type": "object"}}


def said(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "read", "arguments": "{}"}


def result(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": f"result {id}"}


def item(summary: str, *calls: dict[str, Any], seal: Seal = SEAL, kind: str = "compaction") -> dict[str, Any]:
    raws = [Raw(msgspec.json.encode(one)) for one in calls]
    return {**Compacting(seal, raws, ()).item("cmp_1", summary), "type": kind}


def raw(*items: dict[str, Any]) -> list[Raw]:
    return [Raw(msgspec.json.encode(one)) for one in items]


def body_of(*items: dict[str, Any], **fields: Any) -> ResponsesRequest:
    return msgspec.json.decode(msgspec.json.encode({"model": "m", "input": items, **fields}), type=ResponsesRequest)


def prompt_of(*items: dict[str, Any], **fields: Any) -> ChatPrompt:
    return chat_prompt(body_of(*items, **fields), SEAL)


def texts(*items: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message.role.value, message.content) for message in conversation(raw(*items), (), SEAL)]


def test_a_seal_opens_what_it_has_closed_and_nothing_else() -> None:
    content = Compaction("It is ✓.", raw(call("a")))
    closed = SEAL.close(content)
    assert SEAL.open(closed) == content
    for other in (replace(SEAL, model="n"), replace(SEAL, tenant="bob"), Seal()):
        assert other.open(closed) is None
    plain = bytearray(urlsafe_b64decode(closed))
    for at in range(len(plain)):
        changed = plain.copy()
        changed[at] ^= 1
        assert SEAL.open(urlsafe_b64encode(changed).decode()) is None
    deep = Compaction("", [Raw(b"[" * 50_000 + b"]" * 50_000)])
    large = Compaction("", [Raw(b"[]")] * 70_000)
    for wrong in ("", "gAAAA", "é", closed[:-4], closed + "AAAA", SEAL.close(deep), SEAL.close(large)):
        assert SEAL.open(wrong) is None


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary"])
def test_it_replaces_what_the_assistant_and_its_tools_said_and_nothing_else(kind: str) -> None:
    history = (said("developer", "Rules."), said("user", "One"), said("assistant", "1"), call("a"), result("a"))
    assert texts(*history, item("Sum.", kind=kind), said("user", "Two")) == [
        ("developer", "Rules."),
        ("user", "One"),
        ("user", f"{OPENING}Sum."),
        ("user", "Two"),
    ]
    assert texts(item("Sum.", kind=kind)) == [("user", f"{OPENING}Sum.")]


def test_the_last_one_counts() -> None:
    found = texts(item("Old."), said("user", "Go on"), said("assistant", "Well"), item("New."), said("user", "On"))
    assert found == [("user", "Go on"), ("user", f"{OPENING}New."), ("user", "On")]


def test_an_earlier_response_s_is_opened_too() -> None:
    earlier = raw(said("user", "One"), TRIGGER, item("Sum."))
    messages = conversation("Two", earlier, SEAL)
    assert [message.content for message in messages] == ["One", f"{OPENING}Sum.", "Two"]


@pytest.mark.parametrize("sealed", [item("Sum.", seal=Seal("m"))["encrypted_content"], "gAAAAAB", ""])
def test_one_that_cannot_be_opened_is_named(sealed: str) -> None:
    wrong = {"type": "compaction", "encrypted_content": sealed}
    for items, earlier, path in (
        (raw(said("user", "One"), wrong), [], "input[1]"),
        (raw(said("user", "One")), raw(wrong), "previous_response_id[0]"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            conversation(items, earlier, SEAL)
        assert refused.value.param == f"{path}.encrypted_content"
        assert path in refused.value.message
    with pytest.raises(InvalidRequest) as missing:
        conversation(raw({"type": "compaction", "id": "cmp"}), (), SEAL)
    assert missing.value.param == "input[0].encrypted_content"


class TestOpenCalls:
    HISTORY = (said("user", "One"), call("a"), call("b"), result("a"))

    def compacted(self, *items: dict[str, Any]) -> dict[str, Any]:
        return compacting(raw(*items, TRIGGER), (), SEAL).item("cmp_1", "Sum.")

    def test_they_stay_in_pairs_with_their_results(self) -> None:
        made = self.compacted(*self.HISTORY)
        messages = conversation(raw(said("user", "One"), made, result("b")), (), SEAL)
        assert messages[1:] == (
            ChatMessage(Role.USER, f"{OPENING}Sum."),
            ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("b", "read", "{}"),)),
            ChatMessage(Role.TOOL, "result b", tool_call_id="b"),
        )

    def test_one_that_the_client_keeps_itself_is_not_there_twice(self) -> None:
        made = self.compacted(*self.HISTORY)
        kept = conversation(raw(*self.HISTORY, made, call("b"), result("b")), (), SEAL)
        assert kept == conversation(raw(*self.HISTORY, made, result("b")), (), SEAL)

    def test_they_stay_open_in_the_next_one(self) -> None:
        made = self.compacted(*self.HISTORY)
        again = SEAL.open(self.compacted(made, said("user", "Wait"))["encrypted_content"])
        answered = SEAL.open(self.compacted(made, result("b"))["encrypted_content"])
        assert again is not None
        assert answered is not None
        assert [msgspec.json.decode(one) for one in again.calls] == [call("b")]
        assert answered.calls == []


class TestTriggers:
    HISTORY = (said("user", "One"), said("assistant", "1"))

    def test_the_prompt_is_that_of_one_more_question(self) -> None:
        fields: dict[str, Any] = {"tools": [TOOL], "instructions": "Brief.", "reasoning": {"effort": "high"}}
        asked = prompt_of(*self.HISTORY, TRIGGER, tool_choice="required", **fields)
        plain = prompt_of(*self.HISTORY, said("user", INSTRUCTION), **fields)
        assert asked.tool_choice.mode is CallMode.NONE
        assert replace(asked, tool_choice=plain.tool_choice) == plain

    @pytest.mark.parametrize(("wanted", "max_tokens"), [(None, MAX_TOKENS), (-1, MAX_TOKENS), (7, 7)])
    def test_it_is_plain_text_without_reasoning(self, wanted: int | None, max_tokens: int) -> None:
        schema = {"format": {"type": "json_object"}}
        body = body_of(*self.HISTORY, TRIGGER, max_output_tokens=wanted, text=schema, reasoning={"effort": "high"})
        (request,) = body.requests(CONTEXT)
        assert (request.stop.max_tokens, request.grammar, request.reasoning) == (max_tokens, None, NO_REASONING)

    @pytest.mark.parametrize(
        ("items", "param"),
        [((*HISTORY, TRIGGER, said("user", "Two")), "input[2]"), ((TRIGGER,), "input[0]")],
        ids=["in-the-middle", "alone"],
    )
    def test_elsewhere_it_is_refused(self, items: tuple[dict[str, Any], ...], param: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            prompt_of(*items)
        assert refused.value.param == param

    def test_messages_of_others_are_kept_beside_it(self) -> None:
        items = (said("developer", "Rules."), *self.HISTORY, item("Old."), said("user", "Two"), said("assistant", "2"))
        work = compacting(raw(*items, TRIGGER), (), SEAL)
        kept = [msgspec.json.decode(one) for one in work.kept]
        assert kept == [said("developer", "Rules."), said("user", "One"), said("user", "Two")]


@pytest.mark.parametrize(
    ("edit", "param"),
    [
        ({"type": "clear"}, "context_management[0].type"),
        ({"type": "compaction"}, "context_management[0].compact_threshold"),
        ({"type": "compaction", "compact_threshold": 0}, "context_management[0].compact_threshold"),
    ],
)
def test_what_cannot_be_managed_is_named(edit: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _ = body_of(said("user", "Hi"), context_management=[edit]).compact_threshold
    assert refused.value.param == param


WORK = Compacting(SEAL, (), ())
ASKED = with_fields(body_of(said("user", "Hi"), TRIGGER, store=False), compacting=WORK)


def opened(one: dict[str, Any]) -> str:
    content = SEAL.open(one["encrypted_content"])
    assert content is not None
    return content.summary


def events_of(*steps: Step, request: ResponsesRequest = ASKED) -> list[dict[str, Any]]:
    return named_events(transcript(ResponseFraming(request, started("resp_1")), steps))


def test_an_answer_is_one_item_and_shows_nothing_before_its_end() -> None:
    events = events_of(ADMITTED, *THOUGHT, *HELLO, ended())
    assert [event["type"].removeprefix("response.") for event in events] == [
        *("created", "in_progress", "output_item.added", "output_item.done", "completed"),
    ]
    done, last = events[3]["item"], events[4]["response"]
    assert (done["type"], opened(done)) == ("compaction", "Hello ✓")
    assert last["output"] == [done]
    assert last["usage"]["output_tokens_details"]["reasoning_tokens"] == 3
    choice = collected([*THOUGHT, *HELLO, ended()])
    assert choice is not None
    assert response_body(ASKED, started("resp_1"), [choice]).output == [done]
    for event in events:
        assert problems(event, EVENTS[event["type"]]) == [], event
        assert event_problem("/v1/responses", event) == ""


def test_a_summary_that_was_cut_off_says_so_and_is_used() -> None:
    *_, last = events_of(*HELLO, ended(FinishReason.LENGTH))
    assert last["type"] == "response.completed"  # clients go on from no other
    assert opened(last["response"]["output"][0]) == f"Hello ✓{CUT_OFF}"


@pytest.mark.parametrize("steps", [(*THOUGHT,), (TextDelta(" \n", (1,)),), (ReasoningDelta("", (1,)),)])
def test_without_a_summary_it_fails(steps: tuple[Step, ...]) -> None:
    with pytest.raises(NoSummary):
        events_of(*steps, ended(FinishReason.LENGTH))
    choice = collected([*steps, ended(FinishReason.LENGTH)])
    assert choice is not None
    with pytest.raises(NoSummary):
        response_body(ASKED, started("resp_1"), [choice])


def test_one_that_was_made_for_an_answer_is_its_first_item() -> None:
    made = item("Sum.")
    request = with_fields(body_of(said("user", "Hi"), store=False), made=[made])
    events = events_of(ADMITTED, *HELLO, ended(), request=request)
    assert [event["type"].removeprefix("response.") for event in events[2:5]] == [
        *("output_item.added", "output_item.done", "output_item.added"),
    ]
    assert [event["output_index"] for event in events[2:5]] == [0, 0, 1]
    assert [one["type"] for one in events[-1]["response"]["output"]] == ["compaction", "message"]
    assert [message.content for message in chat_prompt(request, SEAL).messages] == ["Hi", f"{OPENING}Sum."]
    for event in events:
        assert problems(event, EVENTS[event["type"]]) == [], event
