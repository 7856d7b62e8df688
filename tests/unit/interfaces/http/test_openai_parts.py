"""Reasoning and tool calls on OpenAI's wire: streamed, whole, and as plain text, read by OpenAI's own strict types."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.json import encode
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, Role
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest, Prompt, TextPrompt, Usage
from domain.request.stream import (
    ContentDelta,
    Finished,
    PrefillProgress,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Framing, Operation, Started
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.openai.chat import CHAT_COMPLETIONS
from interfaces.http.openai.completions import COMPLETIONS
from tests.support.http.clients import events
from tests.support.http.golden import read

CALLS: list[ContentDelta] = [
    ReasoningDelta("I should ", (1,)),
    ReasoningDelta("look.", (2, 3)),
    TextDelta("Looking", (4,)),
    TextDelta("", (5,)),
    ToolCallDelta(0, "call_a", "weather", "", (6,)),
    ToolCallDelta(0, arguments='{"city":', token_ids=(7,)),
    ToolCallDelta(0, arguments=' "Oslo"}', token_ids=(8,)),
    ToolCallDelta(1, "call_b", "time", "{}", (9,)),
    ToolCallDelta(1, token_ids=(10,)),
]


def started(prompt: Prompt, num_choices: int = 1) -> Started:
    request = GenerationRequest(RequestId("id-1"), ModelId("m"), prompt, num_choices=num_choices)
    context = cast(RequestContext, None)  # these operations use nothing of it
    reading = read([IdRow((1, 2, 3))], num_choices, "fp_1")
    return Started(context, (request,), reading, ModelId("m"), 1_700_000_000)


CHAT = started(ChatPrompt((ChatMessage(Role.USER, "hi"),)))
PLAIN = started(TextPrompt("hi"))


def finished(reason: FinishReason) -> Finished:
    return Finished(reason, Usage(3, 10))


def chat(**fields: Any) -> tuple[Operation[Any], Any]:
    operation = CHAT_COMPLETIONS
    return operation, convert({"messages": [{"role": "user", "content": "hi"}], **fields}, operation.body_type)


def streamed(framing: Framing, deltas: Sequence[ContentDelta], reason: FinishReason) -> list[Any]:
    parts = [framing.begin(), framing.feed(0, PrefillProgress(1, 3))]
    parts += [framing.feed(0, delta) for delta in deltas]
    parts += [framing.feed(0, finished(reason)), framing.end()]
    return events(b"".join(parts).decode())


def chunks_of(deltas: Sequence[ContentDelta], reason: FinishReason, **fields: Any) -> list[Any]:
    """A streamed chat's chunks, each read strictly; nothing but `reasoning_content` is beyond OpenAI's types."""
    operation, body = chat(**fields)
    chunks = streamed(operation.framing(body, CHAT), deltas, reason)
    for chunk in chunks:
        read = ChatCompletionChunk.model_validate_json(json.dumps(chunk), strict=True)
        for choice in read.choices:
            assert set(choice.delta.model_extra or ()) <= {"reasoning_content"}
            for call in choice.delta.tool_calls or ():
                assert not call.model_extra
                assert call.function is not None
                assert not call.function.model_extra
    return chunks


def whole(deltas: Sequence[ContentDelta], reason: FinishReason, **fields: Any) -> Any:
    """A whole chat's answer, read strictly."""
    operation, body = chat(**fields)
    answer = json.loads(encode(operation.answer(body, CHAT, [Collected(tuple(deltas), finished(reason))])))
    read = ChatCompletion.model_validate_json(json.dumps(answer), strict=True)
    assert set(read.choices[0].message.model_extra or ()) <= {"reasoning_content"}
    return answer


def joined(chunks: Sequence[Any]) -> dict[str, Any]:
    """The message that a client puts together, as the whole answer has it."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    calls: dict[int, Any] = {}
    for delta in (choice["delta"] for chunk in chunks for choice in chunk["choices"]):
        message["content"] += delta.get("content", "")
        if "reasoning_content" in delta:
            message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                assert piece["index"] == len(calls)
                function = {"name": piece["function"]["name"], "arguments": ""}
                calls[piece["index"]] = {"id": piece["id"], "type": piece["type"], "function": function}
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        message["tool_calls"] = list(calls.values())
        message["content"] = message["content"] or None
    return message


class TestChat:
    def test_reasoning_is_not_sent_where_it_is_not_included(self) -> None:
        chunks = chunks_of(CALLS, FinishReason.TOOL_CALLS, include_reasoning=False)
        message = whole(CALLS, FinishReason.TOOL_CALLS, include_reasoning=False)["choices"][0]["message"]
        assert "reasoning" not in json.dumps([chunk["choices"] for chunk in chunks])
        assert joined(chunks) == message
        assert "reasoning_content" not in message
        assert joined(chunks_of(CALLS, FinishReason.TOOL_CALLS, include_reasoning=True))["reasoning_content"]

    def test_every_part_names_the_system(self) -> None:
        answers = [*chunks_of(CALLS, FinishReason.STOP), whole(CALLS, FinishReason.STOP)]
        assert {answer["system_fingerprint"] for answer in answers} == {CHAT.fingerprint}

    def test_streamed(self) -> None:
        chunks = chunks_of(CALLS, FinishReason.TOOL_CALLS)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas == [
            {"role": "assistant", "content": ""},
            {"reasoning_content": "I should "},
            {"reasoning_content": "look."},
            {"content": "Looking"},
            {
                "tool_calls": [
                    {"index": 0, "id": "call_a", "type": "function", "function": {"name": "weather", "arguments": ""}}
                ]
            },
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ' "Oslo"}'}}]},
            {
                "tool_calls": [
                    {"index": 1, "id": "call_b", "type": "function", "function": {"name": "time", "arguments": "{}"}}
                ]
            },
            {},
        ]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 8 + ["tool_calls"]

    def test_without_calls_content_is_text_and_nothing_else_is_there(self) -> None:
        for deltas, content in (([TextDelta("hi")], "hi"), ([], "")):
            choice = whole(deltas, FinishReason.STOP)["choices"][0]
            assert choice["message"] == {"role": "assistant", "content": content, "refusal": None}
            assert choice["finish_reason"] == "stop"
        assert whole([ReasoningDelta("hm")], FinishReason.LENGTH)["choices"][0]["message"]["content"] == ""

    def test_tokens_and_log_probabilities_are_those_of_all_parts(self) -> None:
        deltas = [
            ReasoningDelta("a", (97,), (TokenLogprob(97, -0.5, ((97, -0.5),)),)),
            ToolCallDelta(0, "call_a", "f", "b", (98,), (TokenLogprob(98, -1.0),)),
            ToolCallDelta(0, "", "", "", (99,), (TokenLogprob(99, -2.0),)),
        ]
        fields = {"logprobs": True, "return_token_ids": True}
        choice = whole(deltas, FinishReason.TOOL_CALLS, **fields)["choices"][0]
        assert choice["token_ids"] == [97, 98, 99]
        assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5, -1.0, -2.0]
        chunks = chunks_of(deltas, FinishReason.TOOL_CALLS, **fields)
        told = [choice for chunk in chunks for choice in chunk["choices"]]
        assert [id for choice in told for id in choice.get("token_ids", ())] == [97, 98, 99]
        assert [entry for choice in told for entry in (choice["logprobs"] or {"content": []})["content"]] == choice[
            "logprobs"
        ]["content"]

    @pytest.mark.parametrize("arguments", [['{"in', 'put": "a', "\\", 'nb"}'], ["a\nb"]], ids=["object", "bare text"])
    def test_a_call_of_a_custom_tool_carries_its_text(self, arguments: list[str]) -> None:
        tools = [{"type": "custom", "custom": {"name": "patch"}}, {"type": "function", "function": {"name": "f"}}]
        deltas = [ToolCallDelta(0, "call_a", "patch", "", (1,))]
        deltas += [ToolCallDelta(0, arguments=piece) for piece in arguments]
        deltas += [ToolCallDelta(1, "call_b", "f", "{}")]
        operation, body = chat(tools=tools)
        answer = operation.answer(body, CHAT, [Collected(tuple(deltas), finished(FinishReason.TOOL_CALLS))])
        read = ChatCompletion.model_validate_json(encode(answer), strict=True)
        calls = [call.model_dump() for call in read.choices[0].message.tool_calls or ()]
        assert calls == [
            {"id": "call_a", "type": "custom", "custom": {"name": "patch", "input": "a\nb"}},
            {"id": "call_b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ]
        chunks = streamed(operation.framing(body, CHAT), deltas, FinishReason.TOOL_CALLS)
        choices = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        pieces = [piece for delta in choices for piece in delta.get("tool_calls", ()) if piece["index"] == 0]
        assert pieces[0] == {"index": 0, "id": "call_a", "type": "custom", "custom": {"name": "patch", "input": ""}}
        assert all(set(piece) == {"index", "custom"} and piece["custom"]["input"] for piece in pieces[1:])
        assert "".join(piece["custom"]["input"] for piece in pieces) == "a\nb"

    def test_a_client_that_wants_the_counts_of_each_chunk_gets_them(self) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = chunks_of(CALLS, FinishReason.TOOL_CALLS, stream_options=options)
        usages = [chunk["usage"] for chunk in chunks]
        assert [usage["completion_tokens"] for usage in usages] == [0, 1, 3, 4, 6, 7, 8, 9, 10, 10]
        assert {usage["prompt_tokens"] for usage in usages} == {3}
        assert not chunks[-1]["choices"]
        last_only = chunks_of(CALLS, FinishReason.TOOL_CALLS, stream_options={"include_usage": True})
        assert [chunk["usage"] for chunk in last_only] == [None] * 9 + [usages[-1]]


class TestCompletions:
    """Everything is text there: reasoning as it stands, a call as its name and arguments."""

    EXPECTED = 'I should look.Lookingweather{"city": "Oslo"}time{}'

    def test_streamed_and_whole(self) -> None:
        operation = COMPLETIONS
        body = convert({"prompt": "hi"}, operation.body_type)
        chunks = streamed(operation.framing(body, PLAIN), CALLS, FinishReason.TOOL_CALLS)
        for chunk in chunks[:-1]:
            chunk["choices"][0]["finish_reason"] = "stop"  # OpenAI's type has no null there, its API has
        for chunk in chunks:
            Completion.model_validate_json(json.dumps(chunk), strict=True)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == self.EXPECTED
        answer = operation.answer(body, PLAIN, [Collected(tuple(CALLS), finished(FinishReason.TOOL_CALLS))])
        read = Completion.model_validate_json(encode(answer), strict=True)
        assert read.choices[0].text == self.EXPECTED
        assert read.choices[0].finish_reason == chunks[-1]["choices"][0]["finish_reason"] == "stop"


@st.composite
def answers(draw: st.DrawFn) -> list[ContentDelta]:
    """Any order of parts, in any pieces."""
    deltas: list[ContentDelta] = []
    num_calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "reasoning", "call"]), max_size=6)):
        pieces = draw(st.lists(st.text(max_size=5), min_size=1, max_size=4))
        if kind == "call":
            deltas.append(ToolCallDelta(num_calls, f"call_{num_calls}", "f", pieces[0]))
            deltas += [ToolCallDelta(num_calls, arguments=piece) for piece in pieces[1:]]
            num_calls += 1
        else:
            deltas += [TextDelta(piece) if kind == "text" else ReasoningDelta(piece) for piece in pieces]
    return deltas


@given(answers())
def test_a_stream_adds_up_to_the_whole_answer(deltas: list[ContentDelta]) -> None:
    assert joined(chunks_of(deltas, FinishReason.STOP)) == whole(deltas, FinishReason.STOP)["choices"][0]["message"]


@given(answers())
def test_parts_are_the_answer_in_order(deltas: list[ContentDelta]) -> None:
    """No two neighbours could still be merged, and nothing is lost."""
    choice = Collected(tuple(deltas), finished(FinishReason.STOP))
    parts = choice.parts()
    assert not any(left.merges_with(right) for left, right in pairwise(parts))
    assert Collected(tuple(parts), choice.finished).text == choice.text
    assert Collected(tuple(parts), choice.finished).reasoning == choice.reasoning
    calls = [part for part in parts if isinstance(part, ToolCallDelta)]
    assert [call.id for call in calls] == [f"call_{number}" for number in range(len(calls))]
    pieces = [delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert "".join(call.arguments for call in calls) == "".join(pieces)
