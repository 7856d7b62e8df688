"""The drafted tokens in the usage that ends a stream."""

import msgspec
import pytest

from domain.request.request import FinishReason, Usage
from domain.request.stream import Finished, TextDelta
from interfaces.http.openai.shared import usage_body
from tests.support.http.golden import framings
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
