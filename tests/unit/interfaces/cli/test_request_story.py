"""What the log says of a request is read back as it was meant, and told in words."""

import logging
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from adapters.system.request_summary import read_summary, summarise
from application.events import PrefixAwaited, PrefixMatched, RequestEnded, RequestPreempted
from application.services.request_timelines import RequestTimeline, RequestTimelines
from domain.ids import RequestId
from domain.request.request import Usage
from interfaces.cli.client.request_story import LOGGER, RequestStory, find_story, from_log, story_lines
from interfaces.cli.terminal.logs import JsonFormatter, PlainFormatter
from tests.support.telemetry.event_script import Script, at

ID = RequestId("chatcmpl-1")
ENDED_AT = datetime(2026, 11, 22, 10, 0, 30, tzinfo=UTC)


def followed() -> RequestTimeline:
    """Of a request that waited for everything there is, reused half of its prompt and was preempted twice."""
    timelines, script = RequestTimelines(), Script()
    timelines.emit(script.queued())
    for reason in ("place", "memory", "place"):
        timelines.emit(script.waits(reason))
    timelines.emit(PrefixAwaited(ID, RequestId("chatcmpl-0"), 512, at(0.6)))
    for reason, diverged_at in (("never-seen", 600), ("last-token", None)):  # the second is after it was preempted
        timelines.emit(
            PrefixMatched(
                id=ID,
                num_prompt=1025,
                reused={"hot": 500, "store": 12},
                num_known=512,
                reason=reason,
                started_ns=at(0.7),
                at_ns=at(0.8),
                diverged_at=diverged_at,
            )
        )
    timelines.emit(script.admitted())
    timelines.emit(script.second_chunk())
    timelines.emit(script.decode_started())
    timelines.emit(script.first_token())
    for _ in range(2):
        timelines.emit(RequestPreempted(ID, 1030, at(3.0)))
    timeline = timelines.get(ID)
    assert timeline is not None
    return timeline


def line(timeline: RequestTimeline, ended: RequestEnded) -> str:
    return summarise(timeline, ended, "ab" * 16)


def story_of(text: str) -> RequestStory:
    found = read_summary(text)
    assert found is not None
    return from_log(found[0], found[1], ENDED_AT)


def whole() -> RequestEnded:
    return replace(Script().ended(), usage=Usage(1025, 9, {"hot": 500, "store": 12}))


def test_a_line_is_read_back() -> None:
    assert story_of(line(followed(), whole())) == RequestStory(
        id=ID,
        model="demo",
        ended_at=ENDED_AT,
        prompt_tokens=1025,
        done_tokens=1025,
        computed_tokens=513,
        reused={"hot": 500, "store": 12},
        stopped="never-seen",
        sentence="From token 600 on the prompt differs from what is stored.",
        output_tokens=9,
        queue_s=1.0,
        prefill_s=1.0,
        decode_s=2.25,
        ttft_s=2.25,
        total_s=4.25,
        waited_for=("place", "memory"),
        followed="chatcmpl-0",
        preemptions=2,
        reason="stop",
        trace_id="ab" * 16,
    )


def test_the_story_in_words() -> None:
    lines = dict(story_lines(story_of(line(followed(), whole()))))
    assert list(lines) == [
        "request", "queued", "waited", "reused", "no more", "computed", "preempted", "first token", "answer", "ended",
        "most of it", "trace",
    ]  # fmt: skip
    assert lines["waited"] == (
        "1.00s, for a place among those computed at once (engine.max_batch) and for memory that others held and for"
        " chatcmpl-0, which was computing the beginning of the same prompt"
    )
    assert lines["reused"] == "512 tokens: 500 from memory, 12 from the store"
    assert lines["no more"] == "never-seen: From token 600 on the prompt differs from what is stored."
    assert lines["computed"] == "513 tokens, in 1.00s"
    assert lines["answer"] == "9 tokens in 2.25s, 4.0 a second"
    assert lines["ended"] == "after 4.25s: stop, the answer was complete"
    assert lines["most of it"] == "decode, 53% of the time"


def test_what_an_error_says_is_no_part_of_the_line() -> None:
    failed = replace(Script().failed(0.5), error_message="see reason=stop prompt=7 error=none: really")
    story = story_of(line(followed(), failed))
    assert (story.reason, story.error_code, story.prompt_tokens) == ("error", "compute_failed", 1025)
    assert story.error_message == "see reason=stop prompt=7 error=none: really"
    assert dict(story_lines(story))["ended"].startswith(
        "after 500.0ms: error, it failed: compute_failed: see reason=stop"
    )


def test_what_did_not_happen_is_not_told() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.emit(script.queued())
    timeline = timelines.get(ID)
    assert timeline is not None
    lines = dict(story_lines(story_of(summarise(timeline, script.ended("cancelled", 3.0, 0)))))
    assert list(lines) == ["request", "queued", "waited", "ended"]
    assert lines["ended"] == "after 3.00s: cancelled, its client left, or it was cancelled"


def test_a_reason_of_another_version_is_named_without_words() -> None:
    story = story_of(line(followed(), whole()).replace("never-seen", "full-moon"))
    assert (story.stopped, story.sentence) == ("full-moon", "")


def formatted(formatter: logging.Formatter, message: str, logger: str = LOGGER) -> str:
    return formatter.format(logging.LogRecord(logger, logging.INFO, "", 0, message, (), None))


@pytest.mark.parametrize("formatter", [PlainFormatter(), JsonFormatter()])
def test_a_log_is_searched_as_it_was_written(formatter: logging.Formatter) -> None:
    message = line(followed(), whole())
    other = message.replace(ID, f"{ID}0")
    forged = formatted(formatter, message.replace("demo", "forged"), "cairn.engine")
    refused = formatted(formatter, f"request refused model='{ID}' error=model_not_found")
    before = "Nov 22 10:00:00 host cairn[7]: "
    lines = [
        formatted(formatter, other),
        forged,
        refused,
        f"{before}{formatted(formatter, message)}\n",
        "{",
        f"{ID} {{",
    ]
    story = find_story(lines, ID)
    assert story is not None
    assert (story.id, story.model) == (ID, "demo")
    assert story.ended_at is not None
    assert abs(story.ended_at - datetime.now(UTC)).days < 1
    assert find_story(lines, "chatcmpl-2") is None


def test_a_story_holds_no_control_code() -> None:
    story = RequestStory(
        id="a\x1b[2J", model="m\n", error_code="e", error_message="\x07", reason="error", sentence="\r"
    )
    assert all(text.isprintable() for _, text in story_lines(replace(story, stopped="x\x1b")))
