"""The messages of a request as the conventions have them, within their bounds."""

import json
from typing import Any

import pytest

from adapters.otel.message_content import MAX_PLACES, MessageContent
from domain.id_row import IdRow
from domain.ids import RequestId
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from domain.request.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from domain.request.stream import ContentDelta, ReasoningDelta, TextDelta, ToolCallDelta

ID = RequestId("r")
CALL = ToolCall("1", "time", "{}")
CHAT = ChatPrompt(
    (
        ChatMessage(Role.SYSTEM, "Be kind."),
        ChatMessage(Role.USER, "What time is it?"),
        ChatMessage(
            Role.ASSISTANT, "Let me see.", reasoning="I cannot know.", tool_calls=(ToolCall("1", "time", "{}"),)
        ),
        ChatMessage(Role.TOOL, "03:31", tool_call_id="1"),
    ),
    tools=(ToolSpec("time", "Tells the time"),),
)


def attributes_of(prompt: Prompt, *deltas: ContentDelta, max_chars: int = 100) -> dict[str, Any]:
    content = MessageContent(max_chars)
    content.asked(ID, prompt)
    for delta in deltas:
        content.answered(ID, delta)
    attributes = content.take(ID, "stop")
    assert content.take(ID, "stop") == {}
    return {name: json.loads(value) if isinstance(value, str) else value for name, value in attributes.items()}


def test_a_conversation_has_roles_and_parts() -> None:
    assert attributes_of(CHAT) == {
        "gen_ai.system_instructions": [{"type": "text", "content": "Be kind."}],
        "gen_ai.tool.definitions": [{"type": "function", "name": "time", "description": "Tells the time"}],
        "gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": "What time is it?"}]},
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "I cannot know."},
                    {"type": "text", "content": "Let me see."},
                    {"type": "tool_call", "id": "1", "name": "time", "arguments": "{}"},
                ],
            },
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "03:31"}]},
        ],
        "gen_ai.output.messages": [{"role": "assistant", "parts": [], "finish_reason": "stop"}],
    }


def test_deltas_of_one_kind_are_joined() -> None:
    deltas = (
        ReasoningDelta("Hm"),
        ReasoningDelta("m."),
        TextDelta(""),
        TextDelta("Two "),
        TextDelta("calls."),
        ToolCallDelta(0, "a", "add", ""),
        ToolCallDelta(0, arguments='{"x"'),
        ToolCallDelta(0, arguments=": 1}"),
        ToolCallDelta(1, "b", "sub", "{}"),
    )
    (answer,) = attributes_of(TextPrompt("?"), *deltas)["gen_ai.output.messages"]
    assert answer["parts"] == [
        {"type": "reasoning", "content": "Hmm."},
        {"type": "text", "content": "Two calls."},
        {"type": "tool_call", "id": "a", "name": "add", "arguments": '{"x": 1}'},
        {"type": "tool_call", "id": "b", "name": "sub", "arguments": "{}"},
    ]


def test_the_last_messages_of_a_long_conversation_are_kept() -> None:
    messages = tuple(ChatMessage(Role.USER, letter * 10) for letter in "abcd")
    found = attributes_of(ChatPrompt(messages), max_chars=25)
    texts = [message["parts"][0]["content"] for message in found["gen_ai.input.messages"]]
    assert texts == ["b" * 5, "c" * 10, "d" * 10]
    assert found["cairn.content.omitted"] == 15


def test_the_beginning_of_a_long_answer_is_kept() -> None:
    found = attributes_of(TextPrompt("x" * 12), *(TextDelta("y") for _ in range(100)), max_chars=10)
    assert found["gen_ai.output.messages"][0]["parts"] == [{"type": "text", "content": "y" * 10}]
    assert found["cairn.content.omitted"] == 2 + 90


MANY = MAX_PLACES + 100


@pytest.mark.parametrize(
    ("messages", "name"),
    [
        ([ChatMessage(Role.USER, "")] * MANY, "gen_ai.input.messages"),
        ([ChatMessage(Role.SYSTEM, "")] * MANY, "gen_ai.system_instructions"),
        ([ChatMessage(Role.ASSISTANT, "", tool_calls=(CALL,) * MANY)], "gen_ai.input.messages"),
    ],
)
def test_empty_messages_take_a_place(messages: list[ChatMessage], name: str) -> None:
    found = attributes_of(ChatPrompt(tuple(messages)), max_chars=10**6)
    assert len(json.dumps(found[name])) < 100 * MAX_PLACES
    assert max(len(found[name]), len(found[name][0].get("parts", ()))) in {MAX_PLACES - 1, MAX_PLACES}


def test_the_first_of_many_calls_are_kept() -> None:
    found = attributes_of(TextPrompt("?"), *(ToolCallDelta(at, "", "", "{}") for at in range(MANY)), max_chars=10**6)
    assert len(found["gen_ai.output.messages"][0]["parts"]) == MAX_PLACES
    assert found["cairn.content.omitted"] == 2 * (MANY - MAX_PLACES)


ODD = ChatPrompt((ChatMessage(Role.USER, "?"),), tools=(ToolSpec("\ud800" * 200, ""),))


@pytest.mark.parametrize(
    "prompt", [TextPrompt("\ud800"), TokenPrompt(IdRow((1, 2))), ODD], ids=["text", "tokens", "tool"]
)
def test_attributes_are_encodable(prompt: Prompt) -> None:
    for value in attributes_of(prompt, TextDelta("\ud800")).values():
        json.dumps(value, ensure_ascii=False).encode()


def test_memory_is_bounded_by_forgetting_the_oldest() -> None:
    content = MessageContent(max_open=2)
    for name in ("a", "b", "c"):
        content.asked(RequestId(name), TextPrompt("?"))
    content.answered(RequestId("a"), TextDelta("lost"))
    assert content.take(RequestId("a"), "stop") == {}
    assert content.take(RequestId("b"), "stop") != {}


def test_a_failure_to_capture_does_not_propagate(caplog: pytest.LogCaptureFixture) -> None:
    content = MessageContent()
    for _ in range(2):
        content.asked(ID, ChatPrompt((ChatMessage(Role.USER, 5),)))  # type: ignore[arg-type]
    content.answered(ID, TextDelta("so"))
    assert content.take(ID, "stop") == {}
    assert len(caplog.records) == 1
