"""The line of the log gives the same body as the server, and the story is written from that body."""

import logging
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from adapters.system.request_summary import read_summary, summarise
from application.events import PrefixAwaited, PrefixMatched, RequestEnded, RequestPreempted
from application.services.request_timelines import RequestTimeline, RequestTimelines
from domain.ids import RequestId
from domain.prefix.explanation import Divergence, Explanation, StopReason
from domain.request.request import Usage
from interfaces.cli.client.request_story import LOGGER, find_story, from_log, queued_at, story_lines
from interfaces.cli.terminal.logs import JsonFormatter, PlainFormatter
from interfaces.http.native.requests import EndBody, RequestBody, request_body
from tests.support.telemetry.event_script import Script, at

ID = RequestId("chatcmpl-1")
ENDED_AT = datetime(2026, 11, 22, 10, 0, 30, tzinfo=UTC)


def followed() -> RequestTimeline:
    """The timeline of a request that waited for every reason, reused half of its prompt and was preempted twice."""
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
    timelines.emit(script.images_matched())
    timelines.emit(script.image_seen())
    timelines.emit(script.second_chunk())
    timelines.emit(script.decode_started())
    timelines.emit(script.first_token())
    for _ in range(2):
        timelines.emit(RequestPreempted(ID, at(3.0)))
    timeline = timelines.get(ID)
    assert timeline is not None
    return timeline


def line(timeline: RequestTimeline, ended: RequestEnded) -> str:
    return summarise(timeline, ended, "ab" * 16)


def body_of(text: str) -> RequestBody:
    found = read_summary(text)
    assert found is not None
    return from_log(found[0], found[1], ENDED_AT)


def told(text: str) -> dict[str, str]:
    return dict(story_lines(body_of(text)))


def whole() -> RequestEnded:
    usage = Usage(1025, 9, {"hot": 500, "store": 12}, proposed={"ngram": 8}, accepted={"ngram": 5})
    return replace(Script().ended(), usage=usage)


def test_a_line_of_the_log_gives_the_body_of_the_server() -> None:
    timeline = followed()
    timeline.ended, timeline.num_output, timeline.is_preempted = whole(), 9, False
    split = Divergence(600, (), (), None)
    explanation = Explanation(1025, StopReason.NEVER_SEEN, {"hot": 500, "store": 12}, 512, split)
    offset_ns = int(ENDED_AT.timestamp()) * 10**9 - whole().at_ns
    server = request_body(timeline, explanation, 0, offset_ns)
    queued = pytest.approx(server.queued_unix_s)
    expected = msgspec.structs.replace(server, requested_model="", queued_unix_s=queued)
    assert body_of(line(timeline, whole())) == expected


def test_the_story_in_words() -> None:
    lines = dict(story_lines(body_of(line(followed(), whole())), "ab" * 16))
    assert list(lines) == [
        "request", "queued", "waited", "reused", "no more", "images", "computed", "preempted", "first token", "answer",
        "drafted", "ended", "most of it", "trace",
    ]  # fmt: skip
    assert lines["waited"] == (
        "1.00s, for a place among those computed at once (engine.max_batch) and for memory that others held and for"
        " chatcmpl-0, which was computing the beginning of the same prompt"
    )
    assert lines["reused"] == "512 tokens: 500 from memory, 12 from the store"
    assert lines["no more"] == "never-seen: From token 600 on the prompt differs from what is stored."
    assert lines["images"] == "2 of 134 tokens, 67 of them reused; the tower passed over 1, in 125.0ms"
    assert lines["computed"] == "513 tokens, in 1.00s"
    assert lines["answer"] == "9 tokens in 2.25s, 4.0 a second"
    assert lines["drafted"] == "5 of 8 drafted tokens were accepted"
    assert lines["ended"] == "after 4.25s: stop, the answer was complete"
    assert lines["most of it"] == "decode, 53% of the time"


def test_the_message_of_an_error_is_no_part_of_the_line() -> None:
    failed = replace(Script().failed(0.5), error_message="see reason=stop prompt=7 error=none: really")
    text = line(followed(), failed)
    assert body_of(text).prompt_tokens == 1025
    assert told(text)["ended"] == (
        "after 500.0ms: error, it failed: compute_failed: see reason=stop prompt=7 error=none: really"
    )


def test_a_stage_that_was_not_reached_has_no_line() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.emit(script.queued())
    timeline = timelines.get(ID)
    assert timeline is not None
    lines = told(summarise(timeline, script.ended("cancelled", 3.0, 0)))
    assert list(lines) == ["request", "queued", "waited", "ended"]
    assert lines["ended"] == "after 3.00s: cancelled, its client left, or it was cancelled"


def test_a_stop_reason_of_another_version_is_left_out() -> None:
    lines = told(line(followed(), whole()).replace("never-seen", "full-moon"))
    assert "no more" not in lines
    assert lines["reused"].startswith("512 tokens")


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
    found = find_story(lines, ID)
    assert found is not None
    body, trace_id = found
    assert (body.id, body.model, trace_id) == (ID, "demo", "ab" * 16)
    assert abs(queued_at(body) - datetime.now(UTC)).days < 1
    assert find_story(lines, "chatcmpl-2") is None


def test_a_story_holds_no_control_code() -> None:
    body = body_of(line(followed(), whole()))
    assert body.explanation is not None
    body.explanation.sentence = "\r"
    end = EndBody(0.0, "error\x1b", "e\x1b", "\x07")
    hostile = msgspec.structs.replace(
        body, id="a\x1b[2J", model="m\n", key="\x1b", waited_for=["\x1b"], followed="\x1b", reused={"\x1b": 1}, end=end
    )
    assert all(text.isprintable() for _, text in story_lines(hostile, "\x1b"))
