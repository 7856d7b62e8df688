"""Figures folded from events: what counts, what counts once, and that nothing grows."""

from dataclasses import replace

import pytest

from adapters.fake.environment import FakeClock
from application.events import (
    Event,
    FirstToken,
    ModelLoaded,
    PrefillChunkComputed,
    PrefixMatched,
    RequestPreempted,
    StateRestored,
    TokensReceived,
)
from application.services.event_sinks import EventFanOut
from application.services.live_figures import LiveFigures
from application.services.request_timelines import RequestTimelines
from domain.health.live_figures import LiveReading
from domain.health.seconds_saved import Saved
from domain.ids import ModelId, RequestId
from domain.request.request import Usage
from tests.support.telemetry.event_script import START_NS, Script, at


def matched(id: str, reused: dict[str, int], reason: str = "never-seen", seconds: float = 1.0) -> PrefixMatched:
    return PrefixMatched(
        id=RequestId(id),
        num_prompt=1025,
        reused=reused,
        num_known=0,
        reason=reason,
        started_ns=at(0.9),
        at_ns=at(seconds),
    )


class Figures:
    """The figures behind the timelines that they read."""

    def __init__(self, max_open: int = 1000) -> None:
        self.clock = FakeClock(START_NS)
        timelines = RequestTimelines(max_open=max_open)
        self.figures = LiveFigures(self.clock, timelines)
        self._sinks = EventFanOut(timelines, self.figures)

    def emit(self, event: Event) -> None:
        self._sinks.emit(event)


def read(figures: Figures, seconds: float = 4.5) -> LiveReading:
    figures.clock.advance(max(0.0, (at(seconds) - figures.clock.now_ns()) / 1e9))
    return figures.figures.read()


def totals(reading: LiveReading) -> dict[str, int]:
    return {origin: sum(counts) for origin, counts in reading.history.tokens.items() if sum(counts)}


def near(value: float | None, expected: float) -> bool:
    return value is not None and abs(value - expected) <= 0.02 * expected


def test_a_request_from_its_queue_to_its_end() -> None:
    figures, script = Figures(), Script()
    for event in (script.queued(), script.admitted(), matched(script.id, {"hot": 512, "store": 256})):
        figures.emit(event)
    for event in (script.second_chunk(), script.decode_started(), script.first_token()):
        figures.emit(event)
    for seconds, num in ((2.25, 1), (2.45, 1), (3.05, 2)):
        figures.emit(TokensReceived(((script.id, num),), at(seconds)))
    figures.emit(script.ended())
    found = read(figures)
    assert totals(found) == {"hot": 512, "store": 256, "computed": 513, "output": 4}
    assert found.reuse[0].hit_rate == {"live": 0.0, "hot": 512 / 1025, "store": 256 / 1025, "shared": 0.0}
    assert near(found.time_to_first_token.p50_s, 2.25)
    assert found.inter_token.num == 2
    assert near(found.inter_token.p99_s, 0.3)


def test_what_is_done_again_after_a_preemption_is_counted_apart() -> None:
    figures, script = Figures(), Script()
    for event in (script.queued(), script.admitted(), matched(script.id, {"hot": 512}), script.second_chunk()):
        figures.emit(event)
    figures.emit(RequestPreempted(script.id, at(2.5)))
    figures.emit(matched(script.id, {"hot": 1024}, seconds=3.0))
    again = PrefillChunkComputed(id=script.id, start=1024, end=1026, started_ns=1, at_ns=at(3.5), is_resumed=True)
    figures.emit(again)
    found = read(figures)
    assert totals(found) == {"hot": 512, "computed": 513, "recomputed": 2}
    assert found.reuse[0].num_lookups == 1


def test_drafts_add_up_by_model_over_all_ended_requests() -> None:
    figures = Figures()
    for id, usage in {
        "a": Usage(9, 30, proposed={"ngram": 20}, accepted={"ngram": 18}),
        "b": Usage(9, 20, proposed={"ngram": 10, "mtp": 5}, accepted={"ngram": 7}),
        "c": Usage(9, 10),
    }.items():
        figures.emit(Script(id).queued())
        figures.emit(replace(Script(id).ended(), usage=usage))
    whole = Usage(27, 60, proposed={"ngram": 30, "mtp": 5}, accepted={"ngram": 25})
    assert figures.figures.usages() == {ModelId("demo"): whole}


def test_a_request_of_many_choices_is_looked_up_once() -> None:
    figures = Figures()
    for choice in range(4):
        figures.emit(Script(f"r.{choice}", choice=choice).queued())
        figures.emit(matched(f"r.{choice}", {"hot": 1024} if choice else {}, "last-token" if choice else "never-seen"))
    found = read(figures)
    assert (found.reuse[0].num_lookups, found.reuse[0].num_prompt_tokens) == (1, 1025)
    assert found.reuse[0].hit_rate is not None
    assert set(found.reuse[0].hit_rate.values()) == {0.0}
    assert totals(found) == {}


def test_sequences_that_decode_together_are_one_latency() -> None:
    figures, together = Figures(), [Script(id) for id in ("a", "b", "c")]
    for script in together:
        figures.emit(script.queued())
    for seconds in (2.0, 2.5):
        figures.emit(TokensReceived(tuple((script.id, 1) for script in together), at(seconds)))
    found = read(figures)
    assert totals(found) == {"output": 6}
    assert found.inter_token.num == 1


def reuse(figures: Figures, id: str, seconds: float, computes: bool = False) -> None:
    """A request that has 512 tokens from the hot tier and 256 from the store, restored in 0.25 s, ends at `seconds`."""
    script = Script(id)
    restored = StateRestored(
        id=script.id,
        position=768,
        size_bytes=4000,
        started_ns=at(1.0),
        fetched_ns=at(1.125),
        at_ns=at(1.25),
        tier_bytes={"hot": 3000, "store": 1000},
    )
    figures.emit(script.queued())
    figures.emit(restored)
    figures.emit(matched(id, {"hot": 512, "store": 256}))
    if computes:
        chunk = PrefillChunkComputed(id=script.id, start=768, end=1025, started_ns=at(2.0), at_ns=at(2.257))
        figures.emit(chunk)
    figures.emit(script.ended(seconds=seconds))


def test_reuse_is_priced_by_the_pace_that_is_measured_until_its_request_ends() -> None:
    figures = Figures()
    reuse(figures, "first", seconds=3.0)
    whole, hour = figures.figures.saved()
    assert whole == hour == Saved(num_unpriced=768)
    reuse(figures, "second", seconds=4.0, computes=True)  # 1 ms a token
    expected = {"live": 0.0, "hot": 0.512 - 0.09375, "store": 0.256 - 0.125 - 0.03125, "shared": 0.0}
    whole, hour = figures.figures.saved()
    assert whole == hour
    assert (whole.seconds, whole.num_unpriced) == (pytest.approx(expected), 768)
    figures.clock.advance(3700)
    reuse(figures, "third", seconds=3704.0)
    whole, hour = figures.figures.saved()
    assert hour.seconds == pytest.approx(expected), "the third alone"
    assert whole.seconds == pytest.approx({tier: 2 * seconds for tier, seconds in expected.items()})
    assert figures.figures.failures() == {}


def test_full_repeats_after_a_restart_are_priced_by_the_remembered_pace() -> None:
    figures = Figures()
    loaded = ModelLoaded(
        id=ModelId("demo"),
        duration_ns=1,
        weight_bytes=1,
        decode_mode="batched",
        note="",
        at_ns=at(0.0),
        pace=((0, 0.001),),
    )
    figures.emit(loaded)
    reuse(figures, "first", seconds=3.0)
    expected = {"live": 0.0, "hot": 0.512 - 0.09375, "store": 0.256 - 0.125 - 0.03125, "shared": 0.0}
    whole, _ = figures.figures.saved()
    assert (whole.seconds, whole.num_unpriced) == (pytest.approx(expected), 0)
    reuse(figures, "second", seconds=4.0, computes=True)
    measured, _ = figures.figures.saved()
    figures.emit(replace(loaded, pace=((0, 9.0),)))
    reuse(figures, "third", seconds=5.0)
    assert figures.figures.saved()[0].plus(measured, -1).seconds == pytest.approx(expected), "a reload changes nothing"


def test_what_a_further_choice_takes_over_saves_nothing_more() -> None:
    figures = Figures()
    reuse(figures, "only", seconds=4.0, computes=True)
    before = figures.figures.saved()
    further = Script("only.1", choice=1)
    for event in (further.queued(), matched(further.id, {"hot": 512}), further.ended()):
        figures.emit(event)
    assert figures.figures.saved() == before


def test_nothing_grows_under_twenty_thousand_events() -> None:
    """Half of the requests never end, and the clock goes round the windows several times."""
    figures = Figures(max_open=50)
    for number in range(2_000):
        script, now = Script(f"r{number}"), at(number * 1.5)
        figures.emit(script.queued())
        figures.emit(script.admitted())
        figures.emit(matched(script.id, {"hot": 2}, seconds=number * 1.5))
        figures.emit(script.decode_started())
        figures.emit(FirstToken(script.id, now))
        for gap_ns in (0, number, number * 1000, number * 100_000):
            figures.emit(TokensReceived(((script.id, 1),), now + gap_ns))
        figures.emit(script.ended() if number % 2 else script.first_chunk())
    assert len(figures.figures._readings) == 180
    assert figures.figures.failures() == {}
