"""The timelines that `cairn bench` reads from a stream, and its figures: without a server and without a clock."""

import json
from typing import Any

import pytest

from interfaces.cli.bench.client import Timeline, decode_rate
from interfaces.cli.bench.command import as_data, percentile
from interfaces.cli.bench.scenarios import COLD, REPEAT, Options, Scenario, conversation, edited


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode()


def said(text: str) -> bytes:
    return event(choices=[{"delta": {"content": text}}])


def answered(*token_s: float, sent_s: float = 0.0, **usage: Any) -> Timeline:
    return Timeline(sent_s, first_token_s=token_s[0], token_s=list(token_s), usage=usage)


def test_a_stream_is_read_line_by_line() -> None:
    timeline = Timeline(1.0)
    for at, line in enumerate(
        [
            b": keep alive",
            b"event: message",
            event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
            event(choices=[{"delta": {"reasoning_content": "hm"}}]),
            b'data:{"choices":[{"text":"o"}]}',
            said("ne"),
            event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 4}),
            b"data: [DONE]",
        ],
        start=2,
    ):
        timeline.read_line(line, float(at))
    assert (timeline.text, timeline.token_s, timeline.ttft_s) == ("hmone", [5.0, 6.0, 7.0], 4.0)
    assert (timeline.num_prompt, timeline.num_output) == (9, 4)
    assert timeline.num_cached is None  # unknown is not zero


def test_an_error_within_a_stream_is_kept() -> None:
    timeline = Timeline(0.0)
    timeline.read_line(event(error={"message": "out of room"}), 1.0)
    assert "out of room" in timeline.error
    timeline.read_line(event(error="long" * 10**5), 1.0)
    assert len(timeline.error) <= 500


@pytest.mark.parametrize("usage", [[1], "x", {"prompt_tokens": -5}, {"prompt_tokens_details": 3}])
def test_malformed_usage_is_unknown(usage: object) -> None:
    timeline = Timeline(0.0)
    timeline.read_line(event(choices=[], usage=usage), 1.0)
    assert (timeline.num_prompt, timeline.num_output, timeline.num_cached) == (None, None, None)


@pytest.mark.parametrize(
    "line", [b"data: {", b"data: 3", b"data: " + b"[" * 100_000, b'data: {"usage": 1e999}', b"data: " + b"9" * 400]
)
def test_a_malformed_event_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Timeline(0.0).read_line(line, 1.0)


def test_the_rate_is_of_the_time_in_which_all_run() -> None:
    one, other = answered(0.0, 1.0, 2.0, 3.0, 4.0), answered(2.0, 3.0, 4.0, 5.0)
    assert decode_rate([one, other]) == pytest.approx(2.0)
    # Each of four chunks of the second held two tokens.
    assert decode_rate([one, answered(2.0, 3.0, 4.0, 5.0, completion_tokens=8)]) == pytest.approx(3.0)
    assert decode_rate([one, answered(9.0, 10.0)]) is None
    # A reader that was late found them all at once: that is no rate of the server's.
    assert decode_rate([answered(1.0, 1.0001, 1.0002, 1.0003)]) is None


def test_percentiles_are_values_that_were_seen() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [percentile(values, share) for share in (0.5, 0.9, 0.99)] == [3.0, 5.0, 5.0]
    assert percentile([7.0], 0.5) == 7.0
    assert percentile([], 0.5) is None


def test_of_several_at_once_the_last_one_counts() -> None:
    shared = Scenario("shared")
    first = answered(1.5, sent_s=1.0, prompt_tokens=10, prompt_tokens_details={"cached_tokens": 4})
    shared.add(first, answered(3.0, sent_s=1.25, prompt_tokens=11, prompt_tokens_details={"cached_tokens": 0}))
    assert (shared.ttft_s, shared.prompt_tokens, shared.cached_tokens) == ([2.0], [21], [4])
    shared.add(first, answered(3.0, sent_s=1.0))
    assert shared.cached_tokens == [4, None]


def test_an_edit_leaves_what_comes_before_it() -> None:
    messages = conversation(5, 40)
    changed = edited(messages)
    differing = [index for index, pair in enumerate(zip(messages, changed, strict=True)) if pair[0] != pair[1]]
    assert differing == [len(messages) // 2]
    assert conversation(5, 40) == messages != conversation(6, 40)


def test_a_report_as_data() -> None:
    cold, repeat = Scenario(COLD), Scenario(REPEAT, note="why not")
    cold.add(answered(2.0, prompt_tokens=9))
    repeat.add(answered(0.5))
    streams = Scenario("1 streams", ttft_s=[0.1], output_tokens=3, rate=9.0, gaps_s=[0.1, 0.3])
    data = as_data("http://here", "m", Options(), [cold, repeat, streams], ["a note"])
    assert [(one["of_cold"], one["cached_tokens"], one["note"]) for one in data["scenarios"]] == [
        (1.0, [None], None),
        (0.25, [None], "why not"),
        (None, [], None),
    ]
    assert (data["scenarios"][2]["itl_p50_s"], data["scenarios"][2]["itl_p99_s"]) == (0.1, 0.3)
    assert json.loads(json.dumps(data))["scenarios"] == data["scenarios"]
