"""What agents ask of any dialect, on the toy engine: bounded reasoning, answers gone on with, bad calls told."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from adapters.system.event_log import EventLog
from application.events import Parsing, RequestEnded
from application.services.request_timelines import RequestTimelines
from application.settings import ModelTable
from domain.ids import RequestId
from domain.request.repetition import RepetitionDetection
from domain.request.request import Usage
from tests.support.http.clients import events
from tests.support.http.servers.fake_service import FakeService, fake_service

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "required": ["a"]}}}]
THOUGHT = "reasoning that goes on and on and on"
BAD_CALLS = '<call>add {}</call><call>sub {"a": 1}</call><call>add {"a": 1}</call>'


@pytest.fixture(scope="module")
def thinking() -> Iterator[FakeService]:
    with fake_service(
        FakeOptions(reply=reply_with(THOUGHT)), tokenizers=FakeTokenizers(FakeTokenizer(thinks=True))
    ) as one:
        yield one


@pytest.fixture(scope="module")
def calling() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with(BAD_CALLS))) as one:
        yield one


def ask(service: FakeService, path: str = CHAT, status: int = 200, **body: Any) -> Any:
    asked = {"input": HELLO} if path == RESPONSES else {"messages": HELLO}
    response = service.client.post(path, json={**asked, **body})
    assert response.status_code == status, response.text
    return response.json()


ENDED = (THOUGHT[:9], THOUGHT[9 + len("</think>") :])
"""What is reasoned within nine tokens, and what the script says behind the end that was put in."""


@pytest.mark.parametrize(
    ("name", "stream"), [("reasoning_budget", False), ("thinking_budget", True), ("thinking_token_budget", False)]
)
def test_reasoning_ends_at_its_budget_and_the_answer_follows(thinking: FakeService, name: str, stream: bool) -> None:
    body = {"messages": HELLO, name: 9, "stream": stream, "return_token_ids": True}
    response = thinking.client.post(CHAT, json=body)
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in events(response.text)]
        told = ["".join(delta.get(key, "") for delta in deltas) for key in ("reasoning_content", "content")]
    else:
        message = response.json()["choices"][0]["message"]
        told = [message["reasoning_content"], message["content"]]
    assert tuple(told) == ENDED


def test_anthropics_budget(thinking: FakeService) -> None:
    answer = ask(thinking, MESSAGES, max_tokens=100, thinking={"type": "enabled", "budget_tokens": 9})
    assert [block.get("thinking") or block.get("text") for block in answer["content"]] == list(ENDED)
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] >= 9


def test_the_effort_none_ends_reasoning_that_a_template_opens_all_the_same(thinking: FakeService) -> None:
    answer = ask(thinking, RESPONSES, reasoning={"effort": "none"})
    assert [item["type"] for item in answer["output"]] == ["message"]
    for off in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking": False}}):
        assert "reasoning_content" not in ask(thinking, **off)["choices"][0]["message"]


def test_a_budget_that_cannot_be_kept_is_refused_where_it_was_asked_for_by_name() -> None:
    tokenizers = FakeTokenizers(FakeTokenizer(reasons=False))
    with fake_service(FakeOptions(reply=reply_with("Hello")), tokenizers=tokenizers) as service:
        error = ask(service, status=400, thinking_budget=9)["error"]
        assert (error["param"], error["code"]) == ("thinking_budget", "invalid_request")
        ask(service, MESSAGES, max_tokens=100, thinking={"type": "enabled", "budget_tokens": 9})
        ask(service, RESPONSES, reasoning={"effort": "none"})


BEGUN = [*HELLO, {"role": "assistant", "content": "Once upon"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False}),
        (CHAT, {"messages": [*HELLO, {**BEGUN[-1], "prefix": True}]}),
        (CHAT, {"messages": [*HELLO, {**BEGUN[-1], "partial": True}]}),
        (MESSAGES, {"messages": BEGUN, "max_tokens": 50}),
    ],
    ids=["vllm", "prefix", "partial", "anthropic"],
)
def test_an_answer_that_the_client_began_is_gone_on_with(path: str, body: dict[str, Any]) -> None:
    prompts: list[str] = []

    def reply(prompt_ids: tuple[int, ...]) -> bytes:
        prompts.append(FakeTokenizer().decode(prompt_ids))
        return b" a time"

    with fake_service(FakeOptions(reply=reply)) as service:
        answer = ask(service, path, **body)
        text = answer["content"][0]["text"] if path == MESSAGES else answer["choices"][0]["message"]["content"]
    assert text == " a time"
    assert all(prompt.endswith("<|start|>assistant\nOnce upon") for prompt in prompts)


def test_responses_refuses_to_go_on_by_name(calling: FakeService) -> None:
    error = ask(calling, RESPONSES, 400, input=BEGUN)["error"]
    assert error["param"] == "input[1]"
    assert "continuing" in error["message"]


KINDS = ["schema_mismatch", "unknown_tool"]


def test_what_is_wrong_with_calls_is_reported_in_the_whole_answer(calling: FakeService) -> None:
    answer = ask(calling, tools=TOOLS, n=2)
    first = answer["choices"][0]["message"]["tool_calls"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "tool_calls"]
    problems = answer["x_cairn"]["tool_call_problems"]
    assert [(one["choice"], one["kind"]) for one in problems] == [(at, kind) for at in (0, 1) for kind in KINDS]
    assert [one["call_id"] for one in problems[:2]] == [call["id"] for call in first[:2]]
    assert problems[0]["detail"] == "the arguments for add: a is missing"


def test_the_log_has_a_line_for_bad_calls_of_every_dialect(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(RequestTimelines())
    with caplog.at_level(logging.WARNING, "cairn.requests"):
        problems = ("unknown_tool", "schema_mismatch")
        parsing = Parsing(family="", num_calls=2, problems=problems, busy_ns=0, started_ns=0, ended_ns=0)
        usage = Usage(1, 2)
        log.emit(RequestEnded(id=RequestId("msg-1"), reason="tool_calls", usage=usage, at_ns=0, parsing=parsing))
        log.close()
    assert caplog.messages == ["request msg-1 tool_call_problems=unknown_tool,schema_mismatch"]


LOOP = "well, " + "and so on, " * 12
DETECTION = {"max_pattern_size": 16, "min_count": 3, "min_tokens": 0}


@pytest.fixture(scope="module")
def repeating() -> Iterator[FakeService]:
    tables = {"fake-attention": ModelTable(repetition_detection=RepetitionDetection(16, min_count=4, min_tokens=0))}
    with fake_service(FakeOptions(reply=reply_with(LOOP)), tables=tables) as one:
        yield one


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_repeats_itself_ends_with_its_cause(repeating: FakeService, stream: bool) -> None:
    body = {"messages": HELLO, "repetition_detection": DETECTION, "stream": stream}
    response = repeating.client.post(CHAT, json=body)
    answer = events(response.text)[-1] if stream else response.json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["x_cairn"] == {"repetitions": [{"choice": 0, "pattern_size": 11, "count": 3}]}


def test_a_model_s_detection_is_of_every_dialect_and_a_request_turns_it_off(repeating: FakeService) -> None:
    assert ask(repeating, MESSAGES, max_tokens=400)["stop_reason"] == "max_tokens"
    id = ask(repeating)["id"]

    def end() -> Any:  # the answer is sent before its end is recorded
        return repeating.client.get(f"/admin/api/requests/{id}").json()["end"]

    repeating.wait_until(lambda: end() is not None, "the end to be recorded")
    assert end()["repeated_tokens"] == 11
    free = ask(repeating, repetition_detection={"max_pattern_size": 0})
    assert free["choices"][0]["message"]["content"] == LOOP
    assert "x_cairn" not in free


def test_a_detection_out_of_range_is_refused_by_its_path(repeating: FakeService) -> None:
    error = ask(repeating, status=400, repetition_detection={"max_pattern_size": 8, "min_count": 1})["error"]
    assert error["param"] == "repetition_detection.min_count"
    assert error["message"].startswith("repetition_detection.min_count must be in 2..")
