"""Ollama's lines: what they add up to, and calls of earlier turns that have no ids."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from application.use_cases.embed import PooledTexts
from domain.ids import ModelId, RequestId
from domain.request.chat import Role
from domain.request.pooling import PooledPrompt
from domain.request.request import ChatPrompt, GenerationRequest
from domain.request.stream import ToolCallDelta
from interfaces.http.ollama.answer import Piece, Shape, chat_answer, generate_answer
from interfaces.http.ollama.chat import ChatRequest, chat_prompt
from interfaces.http.ollama.embed import EmbedRequest
from tests.support.http.golden import SCENARIOS, collected, framings, ollama_answer, transcript

WHOLE = [name for name, steps in SCENARIOS.items() if collected(steps) is not None]


def of_chat(answer: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = answer["message"]
    assert message["role"] == "assistant"
    return message


def of_generate(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "content": answer["response"]}


@pytest.mark.parametrize("scenario", WHOLE)
@pytest.mark.parametrize(
    ("dialect", "shape", "part"),
    [("ollama_chat", chat_answer, of_chat), ("ollama_generate", generate_answer, of_generate)],
    ids=["chat", "generate"],
)
def test_lines_add_up_to_the_whole(
    scenario: str, dialect: str, shape: Shape, part: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    told = [json.loads(line) for line in transcript(framings()[dialect], SCENARIOS[scenario]).splitlines()]
    choice = collected(SCENARIOS[scenario])
    assert choice is not None
    whole = msgspec.to_builtins(ollama_answer(shape).whole(choice))
    for name in ("content", "thinking"):
        assert "".join(part(one).get(name, "") for one in told) == part(whole).get(name, "")
    calls = [call for one in told for call in part(one).get("tool_calls", [])]
    assert calls == part(whole).get("tool_calls", [])
    assert [one["done"] for one in told] == [False] * (len(told) - 1) + [True]
    for name in ("done_reason", "prompt_eval_count", "eval_count", "load_duration"):
        assert told[-1][name] == whole[name]


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if name not in WHOLE])
def test_a_failed_stream_ends_with_its_error(scenario: str) -> None:
    *_, last = transcript(framings()["ollama_chat"], SCENARIOS[scenario]).splitlines()
    assert set(json.loads(last)) == {"error"}


def test_a_call_that_was_cut_off_is_text() -> None:
    choice = collected(SCENARIOS["length_in_a_call"])
    assert choice is not None
    answer = msgspec.to_builtins(ollama_answer(chat_answer).whole(choice))
    assert "tool_calls" not in answer["message"]
    assert answer["message"]["content"].endswith('read {"path": "a.t')


def test_a_call_with_half_a_character_is_a_call() -> None:
    piece = Piece()
    piece.add(ToolCallDelta(0, "c", "read", r'{"path": "a\ud83d"}'))
    assert [call.function.arguments for call in piece.calls] == [{"path": "a�"}]


def test_durations_of_vectors_count_from_the_arrival() -> None:
    request = GenerationRequest(RequestId("r"), ModelId("m"), PooledPrompt(("x",)), arrived_ns=5)
    answer = EmbedRequest(input="x").answer(request, PooledTexts((), 1, 0, submitted_ns=25, ended_ns=105))
    assert (answer.load_duration, answer.total_duration) == (20, 100)


def test_calls_and_their_results_are_matched_in_order() -> None:
    call = {"function": {"name": "read", "arguments": {"path": "a"}}}
    named = {"function": {"name": "read", "arguments": {}}, "id": "call_x"}
    messages = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "tool_calls": [call, call]},
        {"role": "tool", "content": "one", "tool_name": "read"},
        {"role": "tool", "content": "two", "tool_name": "read"},
    ]
    found = chat_prompt(msgspec.convert({"messages": messages}, ChatRequest)).messages
    ids = [one.id for one in found[1].tool_calls]
    assert len(set(ids)) == 2
    assert [one.tool_call_id for one in found[2:]] == ids
    assert [one.arguments for one in found[1].tool_calls] == ['{"path":"a"}'] * 2
    messages = [*messages[:1], {"role": "assistant", "tool_calls": [named]}, {"role": "tool", "tool_call_id": "call_x"}]
    kept: ChatPrompt = chat_prompt(msgspec.convert({"messages": messages}, ChatRequest))
    assert (kept.messages[1].tool_calls[0].id, kept.messages[2].tool_call_id) == ("call_x", "call_x")
    assert kept.messages[2].role is Role.TOOL
