"""Answers and streams of /v1/responses by the schemas of Open Responses (tests/data/conformance), with what is not in
them left out: `custom` tools, and reasoning as content, whose events have OpenAI's names here."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from domain.request.stream import ReasoningDelta, TextDelta, TokenLogprob
from interfaces.http.responses.answer import ResponseFraming, response_body
from interfaces.http.responses.request import ResponsesRequest
from tests.support.http.golden import READ, SCENARIOS, SUMMARISED_REQUEST, collected, ended, started, transcript
from tests.support.http.official import answer_problem, event_problem
from tests.support.telemetry.named_events import named_events

SPEC: dict[str, Any] = json.loads(
    (Path(__file__).parents[3] / "data" / "conformance" / "open_responses.json").read_text()
)
SCHEMAS: dict[str, Any] = SPEC["components"]["schemas"]
EVENTS: dict[str, str] = {SCHEMAS[name]["properties"]["type"]["enum"][0]: name for name in SPEC["events"]}
"""The schema of each event."""

PLAIN = ResponsesRequest(input="Hi", store=False, tools=[{"type": "function", "name": "read"}])
SUMMARISED = msgspec.structs.replace(SUMMARISED_REQUEST, tools=PLAIN.tools, include=None)
REASONING = {name for name in SCENARIOS if "reasoning" in name or name == "silence"}
CASES = [
    (request, name)
    for request in (PLAIN, SUMMARISED)
    for name in SCENARIOS
    if name != "calls_of_every_kind" and (request is SUMMARISED or name not in REASONING)
]


def problems(value: Any, schema: str) -> list[str]:
    document = {"$ref": f"#/components/schemas/{schema}", "components": SPEC["components"]}
    return [error.message for error in jsonschema_rs.validator_for(document).iter_errors(value)]


@pytest.mark.parametrize(("request_body", "scenario"), CASES)
def test_every_event_fits_its_schema(request_body: ResponsesRequest, scenario: str) -> None:
    events = named_events(transcript(ResponseFraming(request_body, started("resp_1")), SCENARIOS[scenario]))
    for event in events:
        assert problems(event, EVENTS[event["type"]]) == [], event


@pytest.mark.parametrize("request_body", [PLAIN, SUMMARISED], ids=["content", "summary"])
@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if collected(SCENARIOS[name]) is not None])
def test_every_answer_fits_its_schema(request_body: ResponsesRequest, scenario: str) -> None:
    choice = collected(SCENARIOS[scenario])
    assert choice is not None
    answer = msgspec.to_builtins(response_body(request_body, started("resp_1"), [choice]))
    assert problems(answer, "ResponseResource") == []


def scored(id: int) -> tuple[TokenLogprob]:
    return (TokenLogprob(id, -0.25, ((id, -0.25), (id + 1, -1.5))),)


SCORED = (
    ReasoningDelta("Hm.", (64,), scored(64)),
    TextDelta("", (65,), scored(65)),  # undecided: shown with the text that follows
    TextDelta("AB", (66,), scored(66)),
    TextDelta("C", (67,), scored(67)),
    TextDelta("", (68,), scored(68)),
    *READ,
    ended(),
)
"""Log probabilities of tokens 64 to 68, of which 65 to 68 are text."""


@pytest.mark.parametrize("include", [["message.output_text.logprobs"], None])
def test_log_probabilities_of_the_text_are_shown_where_they_are_included(include: list[str] | None) -> None:
    request = msgspec.structs.replace(PLAIN, include=include, top_logprobs=2)
    events = named_events(transcript(ResponseFraming(request, started("resp_1")), SCORED))
    sent = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    text_done = next(event for event in events if event["type"] == "response.output_text.done")
    last = events[-1]["response"]
    assert sent == text_done["logprobs"] == last["output"][1]["content"][0]["logprobs"]
    assert [entry["token"] for entry in sent] == (["A", "B", "C", "D"] if include else [])
    assert [[top["logprob"] for top in entry["top_logprobs"]] for entry in sent] == [[-0.25, -1.5]] * len(sent)
    choice = collected(SCORED)
    assert choice is not None
    whole = msgspec.json.encode(response_body(request, started("resp_1"), [choice]))
    assert msgspec.json.decode(whole)["output"] == last["output"]
    assert [event_problem("/v1/responses", event) for event in events] == [""] * len(events)
    assert answer_problem("POST", "/v1/responses", 200, whole) == ""
    for event in events:
        if "reasoning" not in event["type"]:
            assert problems(event, EVENTS[event["type"]]) == [], event
