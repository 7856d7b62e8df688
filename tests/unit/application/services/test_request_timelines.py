"""The fold of request events: stages, times, ends, owners of tokens, unknown and repeated requests, bounds."""

from dataclasses import replace
from typing import Any

import pytest

from application.events import (
    FirstToken,
    PrefillChunkComputed,
    PrefixMatched,
    RequestAdmitted,
    RequestPreempted,
    TokensReceived,
)
from application.services.request_timelines import NUM_SLOWEST, RequestTimeline, RequestTimelines, Stage
from domain.ids import ModelId, RequestId
from domain.prefix.explanation import Divergence, Explanation, StopReason
from domain.request.document import Owner
from domain.request.request import GenerationRequest, TextPrompt
from tests.support.telemetry.event_script import Script, at

ID = RequestId("chatcmpl-1")
MODEL = ModelId("demo")
TOLD = Explanation(
    1025, StopReason.NEVER_SEEN, {"hot": 512}, num_known=512, divergence=Divergence(600, (1, 2), (3, 4), (5, 6))
)
BARE = replace(TOLD, divergence=Divergence(600, (), (), None, stored=None))


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(ID, ModelId("demo"), TextPrompt("secret"), **fields)


def seen(timelines: RequestTimelines, id: RequestId = ID) -> RequestTimeline:
    found = timelines.get(id)
    assert found is not None
    return found


def matched(reused: dict[str, int]) -> PrefixMatched:
    return PrefixMatched(
        id=ID, num_prompt=1025, reused=reused, num_known=512, reason="never-seen", started_ns=1, at_ns=at(1.1)
    )


def test_a_request_from_its_queue_to_its_end() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.emit(replace(script.queued(), operation="createChatCompletion", priority="batch", client="alice"))
    timelines.emit(script.waits("memory"))
    now = seen(timelines)
    assert (now.stage, now.waits_for, now.queued.operation) == (
        Stage.WAITING,
        "memory",
        "createChatCompletion",
    )
    timelines.emit(script.admitted())
    timelines.emit(matched({"hot": 512}))
    now = seen(timelines)
    assert (now.stage, now.waits_for, now.num_done, now.reused) == (
        Stage.PREFILLING,
        "",
        512,
        {"hot": 512},
    )
    timelines.emit(script.second_chunk())
    timelines.emit(script.decode_started())
    timelines.emit(TokensReceived(((ID, 2), (RequestId("other"), 9)), at(3.0)))
    now = seen(timelines)
    assert (now.stage, now.num_done, now.num_output, now.ended) == (Stage.DECODING, 1025, 2, None)
    assert ([one.id for one in timelines.open()], timelines.ended()) == ([ID], [])
    timelines.emit(script.ended(num_output=9))
    (last,) = timelines.ended()
    assert (last.id, last.num_output, last.num_computed_tokens) == (ID, 9, 513)
    assert last.ended == script.ended(num_output=9)
    assert (timelines.open(), timelines.num_open, timelines.failures()) == ([], 0, {})


def test_what_is_returned_does_not_change_any_more() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.emit(script.queued())
    before = seen(timelines)
    timelines.emit(script.admitted())
    assert before.stage is Stage.WAITING


def test_a_preemption_is_seen_and_takes_nothing_back() -> None:
    timelines = RequestTimelines()
    queued, admitted, *computed = Script().prefilled()
    for event in (queued, admitted, matched({"store": 256}), *computed, RequestPreempted(ID, at(3.0))):
        timelines.emit(event)
    assert (seen(timelines).is_preempted, seen(timelines).num_done) == (True, 1025)
    for event in (
        RequestAdmitted(ID, at(4.0)),
        matched({"hot": 1024}),
        PrefillChunkComputed(id=ID, start=1024, end=1030, started_ns=1, at_ns=at(4.5), is_resumed=True),
    ):
        timelines.emit(event)
    now = seen(timelines)
    assert (now.is_preempted, now.num_preemptions, now.num_done) == (False, 1, 1025)
    assert now.reused == {"store": 256}


@pytest.mark.parametrize("keeps", [False, True])
def test_tokens_of_a_divergence_are_kept_only_where_that_is_allowed(keeps: bool) -> None:
    timelines, script = RequestTimelines(keeps_tokens=keeps), Script()
    timelines.emit(script.queued())
    timelines.explained(ID, request(), TOLD)
    assert seen(timelines).explanation == (TOLD if keeps else BARE)


@pytest.mark.parametrize(
    ("viewer", "may_see"),
    [
        (Owner.of("", "tenant", "alice"), True),
        (Owner.of("", "tenant", "root"), False),
        (Owner.of("", "", "alice"), False),
        (Owner.of("", "other", "alice"), False),
    ],
)
def test_tokens_are_for_the_same_key_and_salt_alone(viewer: Owner, may_see: bool) -> None:
    timelines, script = RequestTimelines(keeps_tokens=True), Script()
    timelines.emit(script.queued())
    timelines.explained(ID, request(cache_salt="tenant", client="alice"), TOLD)
    assert seen(timelines).tokens_for(viewer) == (TOLD if may_see else BARE)


def test_the_last_that_ended_are_kept_newest_first() -> None:
    timelines = RequestTimelines(max_ended=3)
    for number in range(5):
        script = Script(str(number))
        timelines.emit(script.queued())
        timelines.emit(script.ended())
    assert [one.id for one in timelines.ended()] == ["4", "3", "2"]
    assert [one.id for one in timelines.ended(1)] == ["4"]
    assert timelines.ended(0) == []
    assert timelines.get(RequestId("1")) is None


def test_nothing_grows_under_ten_thousand_events() -> None:
    timelines = RequestTimelines(keeps_tokens=True, max_ended=100, max_open=50)
    for number in range(2_000):
        script = Script(f"r{number}")
        timelines.emit(script.queued())
        timelines.explained(script.id, request(), TOLD)
        timelines.emit(script.admitted())
        timelines.emit(script.first_chunk())
        timelines.emit(script.ended() if number % 2 else script.second_chunk())
    assert timelines.num_open <= 50
    assert len(timelines.ended()) == 100
    assert timelines.failures() == {}


def test_times_of_the_stages() -> None:
    timelines, script = RequestTimelines(), Script()
    for event in script.finished():
        timelines.emit(event)
    (timeline,) = timelines.ended()
    ended_ns = timeline.queued.at_ns + 4_250_000_000
    assert [timeline.time_in_s(stage, ended_ns) for stage in Stage] == [1.0, 1.0, 2.25]
    assert (timeline.time_to_first_token_s, timeline.time_per_output_token_s(ended_ns, 9)) == (2.25, 0.25)
    assert timeline.time_per_output_token_s(ended_ns, 1) is None
    assert not any(timelines.num_in_stage().values())


def test_a_stage_that_was_never_reached_has_no_time() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.emit(script.queued())
    timelines.emit(script.ended("cancelled", 3.0))
    (timeline,) = timelines.ended()
    assert [timeline.time_in_s(stage, at(3.0)) for stage in Stage] == [3.0, None, None]
    assert timeline.time_to_first_token_s is None


def test_events_that_do_not_follow_change_nothing() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.emit(script.admitted())
    timelines.emit(script.ended())
    assert (timelines.num_open, timelines.ended()) == (0, [])
    timelines.emit(script.queued())
    timelines.emit(script.first_token())
    timelines.emit(script.decode_started())
    assert (seen(timelines).stage, seen(timelines).first_token_ns) == (Stage.WAITING, None)
    timelines.emit(script.admitted())
    timelines.emit(script.admitted(9.0))
    assert seen(timelines).admitted_ns == at(1.0)
    assert timelines.num_in_stage() == {(MODEL, Stage.WAITING): 0, (MODEL, Stage.PREFILLING): 1}


def test_queued_again_under_the_same_id_counts_once() -> None:
    timelines, script = RequestTimelines(), Script()
    for event in (script.queued(), script.admitted(), script.queued()):
        timelines.emit(event)
    assert timelines.num_in_stage() == {(MODEL, Stage.WAITING): 1, (MODEL, Stage.PREFILLING): 0}


def test_what_is_waited_for_is_counted_until_it_is_there() -> None:
    timelines = RequestTimelines(max_open=3)
    scripts = [Script(str(n)) for n in range(4)]
    for script in scripts[:3]:
        timelines.emit(script.queued())
        timelines.emit(script.waits())
    timelines.emit(scripts[0].waits("place"))
    assert timelines.num_waiting_for() == {"memory": 2, "place": 1}
    timelines.emit(scripts[0].admitted())
    timelines.emit(scripts[1].ended("error"))
    for script in (scripts[3], Script("5"), Script("6")):  # the oldest is dropped, then the next one
        timelines.emit(script.queued())
    assert timelines.num_waiting_for() == {"memory": 0, "place": 0}


def test_the_gap_between_deliveries_is_a_token_s_share() -> None:
    timelines, script = RequestTimelines(), Script()
    for event in script.prefilled():
        timelines.emit(event)
    for seconds, num_tokens, gap_ns in ((3.0, 1, None), (3.5, 2, 250_000_000)):
        timelines.emit(TokensReceived(((script.id, num_tokens),), at(seconds)))
        assert seen(timelines).gap_ns == gap_ns


def end_one(timelines: RequestTimelines, id: str, ttft_s: float, ended_s: float) -> None:
    script = Script(id)
    events = (script.queued(), script.admitted(), script.decode_started())
    for event in (*events, FirstToken(script.id, at(ttft_s)), script.ended(seconds=ended_s)):
        timelines.emit(event)


def test_the_slowest_of_the_last_hour_are_kept_longer_than_the_last() -> None:
    timelines = RequestTimelines(max_ended=1)
    for number in range(30):
        end_one(timelines, f"quick-{number}", 3 + number / 100, 10)
    end_one(timelines, "slow", 9, 400)
    end_one(timelines, "late", 4, 1000)
    now_ns = at(1000)
    found = timelines.slowest(50, now_ns)
    assert len(found) == NUM_SLOWEST
    assert [one.id for one in found[:3]] == ["slow", "late", "quick-29"]
    assert [one.id for one in timelines.slowest(1, now_ns)] == ["slow"]
    assert seen(timelines, RequestId("quick-29")).time_to_first_token_s == pytest.approx(3.29)
    assert timelines.get(RequestId("quick-0")) is None
    assert [one.id for one in timelines.slowest(50, at(3800))] == ["slow", "late"]
    assert timelines.slowest(50, at(5000)) == []
    end_one(timelines, "next", 2.5, 3 * 3600)
    assert [one.id for one in timelines.slowest(50, at(3 * 3600))] == ["next"]
    assert timelines.get(RequestId("slow")) is None


def test_a_request_without_a_first_token_is_not_among_the_slowest() -> None:
    timelines, script = RequestTimelines(), Script()
    for event in (script.queued(), script.failed(900)):
        timelines.emit(event)
    assert timelines.slowest(50, at(900)) == []
