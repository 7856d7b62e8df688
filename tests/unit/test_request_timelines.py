"""Folding events into timelines: stages, times, unknown and repeated requests, the bound."""

from application.services.request_timelines import RequestTimelines, Stage
from domain.ids import ModelId
from tests.support.event_script import Script, at

MODEL = ModelId("demo")


def test_a_request_goes_through_its_stages() -> None:
    timelines, script = RequestTimelines(), Script()
    timeline = timelines.queued(script.queued())
    assert timelines.num_open() == {(MODEL, Stage.WAITING): 1}
    timelines.admitted(script.admitted())
    timelines.computed(script.first_chunk())
    timelines.computed(script.second_chunk())
    assert timeline.num_computed_tokens == 1025
    timelines.decode_started(script.decode_started())
    timelines.first_token(script.first_token())
    assert timelines.num_open()[MODEL, Stage.DECODING] == 1
    assert timelines.ended(script.ended()) is timeline
    assert not any(timelines.num_open().values())
    assert [timeline.time_in_s(stage, at(4.25)) for stage in Stage] == [1.0, 1.0, 2.25]
    assert timeline.time_to_first_token_s == 2.25
    assert timeline.time_per_output_token_s(at(4.25), 9) == 0.25
    assert timeline.time_per_output_token_s(at(4.25), 1) is None


def test_a_stage_that_was_never_reached_has_no_time() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.queued(script.queued())
    timeline = timelines.ended(script.ended("cancelled", 3.0))
    assert timeline is not None
    assert [timeline.time_in_s(stage, at(3.0)) for stage in Stage] == [3.0, None, None]
    assert timeline.time_to_first_token_s is None


def test_events_that_do_not_follow_change_nothing() -> None:
    timelines, script = RequestTimelines(), Script()
    assert timelines.admitted(script.admitted()) is None
    assert timelines.ended(script.ended()) is None
    timeline = timelines.queued(script.queued())
    assert timelines.first_token(script.first_token()) is None
    assert timelines.decode_started(script.decode_started()) is None
    assert timelines.admitted(script.admitted()) is timeline
    assert timelines.admitted(script.admitted(9.0)) is None
    assert timeline.admitted_ns == at(1.0)
    assert timelines.num_open() == {(MODEL, Stage.WAITING): 0, (MODEL, Stage.PREFILLING): 1}


def test_queued_again_under_the_same_id_counts_once() -> None:
    timelines, script = RequestTimelines(), Script()
    timelines.queued(script.queued())
    timelines.admitted(script.admitted())
    timelines.queued(script.queued())
    assert timelines.num_open() == {(MODEL, Stage.WAITING): 1, (MODEL, Stage.PREFILLING): 0}


def test_what_is_waited_for_is_counted_until_it_is_there() -> None:
    timelines = RequestTimelines(max_open=3)
    scripts = [Script(str(n)) for n in range(4)]
    for script in scripts[:3]:
        timelines.queued(script.queued())
        timelines.waits(script.waits())
    timelines.waits(scripts[0].waits("place"))
    assert timelines.num_waiting_for() == {"memory": 2, "place": 1}
    timelines.admitted(scripts[0].admitted())
    timelines.ended(scripts[1].ended("error"))
    timelines.queued(scripts[3].queued())
    timelines.queued(Script("5").queued())  # the oldest is dropped, then the next one
    timelines.queued(Script("6").queued())
    assert timelines.num_waiting_for() == {"memory": 0, "place": 0}
    assert timelines.waits(scripts[0].waits()) is None


def test_lost_ends_do_not_grow_memory() -> None:
    timelines = RequestTimelines(max_open=3)
    for n in range(10):
        timelines.queued(Script(str(n)).queued())
    assert timelines.num_open() == {(MODEL, Stage.WAITING): 3}
    assert timelines.ended(Script("6").ended()) is None
    assert timelines.ended(Script("7").ended()) is not None
