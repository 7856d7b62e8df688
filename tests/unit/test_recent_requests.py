"""Requests as they are seen: how far each is, how it ended, whose tokens may be told to whom, and the bounds."""

from dataclasses import replace
from typing import Any

import pytest

from application.events import PrefillChunkComputed, PrefixMatched, RequestAdmitted, RequestPreempted
from application.services.recent_requests import RecentRequests, SeenRequest
from application.services.request_timelines import Stage
from application.token_events import TokensReceived
from domain.document import Owner
from domain.explanation import Divergence, Explanation, StopReason
from domain.ids import ModelId, RequestId
from domain.request import GenerationRequest, TextPrompt
from tests.support.event_script import Script, at

ID = RequestId("chatcmpl-1")
TOLD = Explanation(
    1025, StopReason.NEVER_SEEN, {"hot": 512}, num_known=512, divergence=Divergence(600, (1, 2), (3, 4), (5, 6))
)
BARE = replace(TOLD, divergence=Divergence(600, (), (), None, stored=None))


def request(**fields: Any) -> GenerationRequest:
    return GenerationRequest(ID, ModelId("demo"), TextPrompt("secret"), **fields)


def seen(recent: RecentRequests, id: RequestId = ID) -> SeenRequest:
    found = recent.get(id)
    assert found is not None
    return found


def matched(reused: dict[str, int]) -> PrefixMatched:
    return PrefixMatched(
        id=ID, num_prompt=1025, reused=reused, num_known=512, reason="never-seen", started_ns=1, at_ns=at(1.1)
    )


def test_a_request_from_its_queue_to_its_end() -> None:
    recent, script = RecentRequests(), Script()
    recent.emit(replace(script.queued(), operation="createChatCompletion", priority="batch", client="alice"))
    recent.emit(script.waits("memory"))
    now = seen(recent)
    assert (now.timeline.stage, now.timeline.waits_for, now.operation) == (
        Stage.WAITING,
        "memory",
        "createChatCompletion",
    )
    recent.emit(script.admitted())
    recent.emit(matched({"hot": 512}))
    now = seen(recent)
    assert (now.timeline.stage, now.timeline.waits_for, now.num_done, now.reused) == (
        Stage.PREFILLING,
        "",
        512,
        {"hot": 512},
    )
    recent.emit(script.second_chunk())
    recent.emit(script.decode_started())
    recent.emit(TokensReceived(((ID, 2), (RequestId("other"), 9)), at(3.0)))
    now = seen(recent)
    assert (now.timeline.stage, now.num_done, now.num_output, now.ended) == (Stage.DECODING, 1025, 2, None)
    assert ([one.id for one in recent.open()], recent.ended()) == ([ID], [])
    recent.emit(script.ended(num_output=9))
    (last,) = recent.ended()
    assert (last.id, last.num_output, last.timeline.num_computed_tokens) == (ID, 9, 513)
    assert last.ended == script.ended(num_output=9)
    assert (recent.open(), recent.num_open, recent.failures()) == ([], 0, {})


def test_what_is_returned_does_not_change_any_more() -> None:
    recent, script = RecentRequests(), Script()
    recent.emit(script.queued())
    before = seen(recent)
    recent.emit(script.admitted())
    assert before.timeline.stage is Stage.WAITING


def test_a_preemption_is_seen_and_takes_nothing_back() -> None:
    recent = RecentRequests()
    queued, admitted, *computed = Script().prefilled()
    for event in (queued, admitted, matched({"store": 256}), *computed, RequestPreempted(ID, 1030, at(3.0))):
        recent.emit(event)
    assert (seen(recent).is_preempted, seen(recent).num_done) == (True, 1025)
    for event in (
        RequestAdmitted(ID, at(4.0)),
        matched({"hot": 1024}),
        PrefillChunkComputed(id=ID, start=1024, end=1030, started_ns=1, at_ns=at(4.5), is_resumed=True),
    ):
        recent.emit(event)
    now = seen(recent)
    assert (now.is_preempted, now.timeline.num_preemptions, now.num_done) == (False, 1, 1025)
    assert now.reused == {"store": 256}


@pytest.mark.parametrize("keeps", [False, True])
def test_tokens_of_a_divergence_are_kept_only_where_that_is_allowed(keeps: bool) -> None:
    recent, script = RecentRequests(keeps_tokens=keeps), Script()
    recent.emit(script.queued())
    recent.explained(ID, request(), TOLD)
    assert seen(recent).explanation == (TOLD if keeps else BARE)


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
    recent, script = RecentRequests(keeps_tokens=True), Script()
    recent.emit(script.queued())
    recent.explained(ID, request(cache_salt="tenant", client="alice"), TOLD)
    assert seen(recent).tokens_for(viewer) == (TOLD if may_see else BARE)


def test_the_last_that_ended_are_kept_newest_first() -> None:
    recent = RecentRequests(max_ended=3)
    for number in range(5):
        script = Script(str(number))
        recent.emit(script.queued())
        recent.emit(script.ended())
    assert [one.id for one in recent.ended()] == ["4", "3", "2"]
    assert [one.id for one in recent.ended(1)] == ["4"]
    assert recent.ended(0) == []
    assert recent.get(RequestId("1")) is None


def test_nothing_grows_under_a_hundred_thousand_events() -> None:
    recent = RecentRequests(keeps_tokens=True, max_ended=100, max_open=50)
    for number in range(20_000):
        script = Script(f"r{number}")
        recent.emit(script.queued())
        recent.explained(script.id, request(), TOLD)
        recent.emit(script.admitted())
        recent.emit(script.first_chunk())
        recent.emit(script.ended() if number % 2 else script.second_chunk())
    assert recent.num_open <= 50
    assert len(recent.ended()) == 100
    assert recent.failures() == {}
