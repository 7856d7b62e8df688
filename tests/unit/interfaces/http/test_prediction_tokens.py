"""The drafted tokens in the usage that ends a stream."""

import msgspec
import pytest
from anthropic.types import Message
from openai.types.responses import Response

from domain.request.request import FinishReason, Usage
from domain.request.stream import Finished, TextDelta
from interfaces.http.answering.collected import Collected
from interfaces.http.anthropic.answer import message_body
from interfaces.http.openai.shared import usage_body
from interfaces.http.responses.answer import response_body
from tests.support.http.golden import RESPONSES_REQUEST, framings, started
from tests.support.http.wire_scenarios import transcript

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


def test_official_models_read_answers_with_them() -> None:
    choice = Collected((TextDelta("Hi", (1,)),), Finished(FinishReason.STOP, USAGE))
    message = msgspec.json.encode(message_body(None, started("msg-1"), [choice]))
    assert Message.model_validate_json(message, strict=True).usage.output_tokens == 8
    response = Response.model_validate_json(
        msgspec.json.encode(response_body(RESPONSES_REQUEST, started("resp-1"), [choice])), strict=True
    )
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens == 0
