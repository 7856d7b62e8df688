"""The story of a request, written from the body that the server gives of it."""

from dataclasses import replace

import msgspec

from application.events import PrefixAwaited, PrefixMatched, RequestEnded, RequestPreempted
from application.services.request_timelines import RequestTimeline, RequestTimelines
from domain.ids import RequestId
from domain.prefix.explanation import Divergence, Explanation, StopReason
from domain.request.request import Usage
from interfaces.cli.client.request_story import story_lines
from interfaces.http.native.requests import EndBody, RequestBody, request_body
from tests.support.telemetry.event_script import Script, at

ID = RequestId("chatcmpl-1")
REUSED = {"hot": 500, "store": 12}


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
                reused=REUSED,
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


def body_of(timeline: RequestTimeline, ended: RequestEnded) -> RequestBody:
    """The body that a server gives of a request that ended."""
    timeline.ended, timeline.num_output, timeline.is_preempted = ended, ended.usage.completion_tokens, False
    explanation = Explanation(1025, StopReason.NEVER_SEEN, REUSED, 512, Divergence(600, (), (), None))
    return request_body(timeline, explanation if timeline.matched else None, 0, 0)


def whole() -> RequestEnded:
    usage = Usage(1025, 9, REUSED, proposed={"ngram": 8}, accepted={"ngram": 5})
    return replace(Script().ended(), usage=usage)


def test_the_story_in_words() -> None:
    lines = dict(story_lines(body_of(followed(), whole())))
    assert list(lines) == [
        "request", "queued", "waited", "reused", "no more", "images", "computed", "preempted", "first token", "answer",
        "drafted", "ended", "most of it",
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


def test_a_stage_that_was_not_reached_has_no_line() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.emit(script.queued())
    timeline = timelines.get(ID)
    assert timeline is not None
    lines = dict(story_lines(body_of(timeline, script.ended("cancelled", 3.0, 0))))
    assert list(lines) == ["request", "queued", "waited", "ended"]
    assert lines["ended"] == "after 3.00s: cancelled, its client left, or it was cancelled"


def test_an_answer_that_repeated_itself_is_said_to_have() -> None:
    lines = dict(story_lines(body_of(followed(), Script.parsed(Script().ended("length")))))
    assert lines["ended"] == "after 4.25s: length, it repeated the same 7 tokens (repetition_detection)"


def test_a_story_holds_no_control_code() -> None:
    body = body_of(followed(), whole())
    assert body.explanation is not None
    body.explanation.sentence = "\r"
    end = EndBody(0.0, "error\x1b", "e\x1b", "\x07")
    hostile = msgspec.structs.replace(
        body, id="a\x1b[2J", model="m\n", key="\x1b", waited_for=["\x1b"], followed="\x1b", reused={"\x1b": 1}, end=end
    )
    assert all(text.isprintable() for _, text in story_lines(hostile))
