"""Golden transcripts of the dialects whose streams have named events, read strictly by the official SDKs' models."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from domain.request.request import FinishReason, Usage
from domain.request.stream import Finished, TextDelta
from interfaces.http.anthropic.answer import message_body
from interfaces.http.anthropic.conversation import input_of
from interfaces.http.openai.shared import usage_body
from interfaces.http.responses.answer import response_body
from interfaces.http.responses.request import ResponsesRequest
from tests.support.http.golden import (
    RESPONSES_REQUEST,
    SCENARIOS,
    SUMMARISED_REQUEST,
    collected,
    framings,
    golden_file,
    recorded,
    started,
    transcript,
)
from tests.support.http.official import answer_problem, event_problem, message_problem
from tests.support.telemetry.named_events import named_events

WHOLE = [name for name, steps in SCENARIOS.items() if collected(steps) is not None]
FAILED = [name for name in SCENARIOS if name not in WHOLE]


def told(dialect: str, scenario: str) -> list[dict[str, Any]]:
    return named_events(transcript(framings()[dialect], SCENARIOS[scenario]))


@pytest.mark.parametrize(("dialect", "scenario"), recorded())
def test_what_a_client_reads_is_what_the_file_says(dialect: str, scenario: str) -> None:
    assert transcript(framings()[dialect], SCENARIOS[scenario]) == golden_file(dialect, scenario).read_bytes()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_anthropics_own_models_read_every_event(scenario: str) -> None:
    for event in told("anthropic", scenario):
        assert event_problem("/v1/messages", event) == ""


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("dialect", ["responses", "responses_summary"])
def test_openais_own_models_read_every_event(dialect: str, scenario: str) -> None:
    events = told(dialect, scenario)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        assert event_problem("/v1/responses", event) == ""
        assert message_problem(event) == ""


@pytest.mark.parametrize("scenario", WHOLE)
def test_whole_answers_are_read_by_the_official_models(scenario: str) -> None:
    choice = collected(SCENARIOS[scenario])
    assert choice is not None
    message = msgspec.json.encode(message_body(None, started("msg-1"), [choice]))
    assert answer_problem("POST", "/v1/messages", 200, message) == ""
    for request in (RESPONSES_REQUEST, SUMMARISED_REQUEST):
        response = msgspec.json.encode(response_body(request, started("resp_1"), [choice]))
        assert answer_problem("POST", "/v1/responses", 200, response) == ""


@pytest.mark.parametrize("scenario", [name for name in WHOLE if name != "silence"])
def test_a_streamed_message_adds_up_to_the_whole_one(scenario: str) -> None:
    choice = collected(SCENARIOS[scenario])
    assert choice is not None
    whole = msgspec.to_builtins(message_body(None, started("msg-1"), [choice]))
    events = told("anthropic", scenario)
    *_, finish, _ = events
    first = events[0]["message"]
    usage = {**first["usage"], **finish["usage"]}  # as the SDKs put them together
    message = {**first, **finish["delta"], "usage": usage, "content": _blocks(events)}
    assert message == whole


def _blocks(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a client puts them together."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert index == len(blocks)
                blocks.append({**block, "input": ""} if block["type"] == "tool_use" else block)
            case {"type": "content_block_delta", "delta": {"type": _, **pieces}}:
                for name, piece in pieces.items():
                    blocks[-1]["input" if name == "partial_json" else name] += piece
    return [{**block, "input": input_of(block["input"])} if "input" in block else block for block in blocks]


@pytest.mark.parametrize("scenario", WHOLE)
@pytest.mark.parametrize("request_body", [RESPONSES_REQUEST, SUMMARISED_REQUEST], ids=["content", "summary"])
def test_a_streamed_response_ends_with_the_whole_one(scenario: str, request_body: ResponsesRequest) -> None:
    choice = collected(SCENARIOS[scenario])
    assert choice is not None
    dialect = "responses" if request_body is RESPONSES_REQUEST else "responses_summary"
    events = told(dialect, scenario)
    last = events[-1]["response"]
    assert last == msgspec.to_builtins(response_body(request_body, started("resp_1"), [choice]))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    cut = scenario == "length_in_a_call"
    assert done == (last["output"][:-1] if cut else last["output"])


def test_claude_code_counts_every_sign_of_life() -> None:
    """It counts deltas of a block and nothing else; what is open stays open, and text goes on in the block."""
    events = told("anthropic", "silence")
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    empty = [delta for delta in deltas if set(delta.values()) & {""} and delta["type"] != "signature_delta"]
    assert [delta["type"] for delta in empty] == [
        *("text_delta", "text_delta", "text_delta", "thinking_delta", "input_json_delta", "input_json_delta")
    ]  # the last is the call's own beginning or the sign of life in it
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["text", "thinking", "tool_use"]
    assert events[0]["message"]["usage"]["cache_read_input_tokens"] == 0
    finish = next(event for event in events if event["type"] == "message_delta")
    assert (finish["usage"]["input_tokens"], finish["usage"]["cache_read_input_tokens"]) == (232, 768)


@pytest.mark.parametrize("scenario", FAILED)
def test_a_failed_stream_ends_with_its_error(scenario: str) -> None:
    last = told("anthropic", scenario)[-1]
    assert last["type"] == "error"
    assert last["error"]["type"] == {"failure_at_once": "overloaded_error"}.get(scenario, "api_error")
    failed = told("responses", scenario)[-1]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    code = {"failure_at_once": "rate_limit_exceeded"}.get(scenario, "server_error")
    assert failed["response"]["error"]["code"] == code
    assert [item["type"] for item in failed["response"]["output"]] == (
        ["function_call"] if scenario == "failure_after_a_call" else []
    )


USAGE = Usage(10, 8, proposed={"ngram": 6, "mtp": 4}, accepted={"ngram": 5, "mtp": 2})


@pytest.mark.parametrize("dialect", framings())
def test_the_end_of_a_stream_reports_accepted_and_rejected_tokens(dialect: str) -> None:
    steps = [TextDelta("Hi", (1,)), Finished(FinishReason.STOP, USAGE)]
    assert b'"accepted_prediction_tokens":7,"rejected_prediction_tokens":3' in transcript(framings()[dialect], steps)


def test_choices_are_summed_and_without_drafts_there_are_zeros() -> None:
    plain = Usage(10, 8)
    for usages, expected in (([USAGE, plain, USAGE], (14, 6)), ([plain, plain, plain], (0, 0))):
        details = msgspec.to_builtins(usage_body(usages, 3).completion_tokens_details)
        assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == expected
