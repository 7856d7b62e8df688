"""Images on the token side: prepared beside other work, seen once, kept as long as memory allows, and never cut."""

from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.fake.vision import ToyImages, toy_image
from application.events import ImageSeen, PrefillChunkComputed, RequestPreempted
from application.services.token_side.speculation import SequenceDrafts
from domain.errors import ComputeFailed
from domain.ids import RequestId, SequenceId
from domain.scheduling.sequence import Sequence
from domain.speculation.lookup import LARGEST_ID
from tests.support.engines.drafters import CHEAP
from tests.support.engines.stepped_engine import GRID, MODEL, SteppedEngine
from tests.support.engines.sync_engine import submission
from tests.support.engines.toy_prompts import Parts, prompt_of
from tests.support.processes.lanes import HeldLane

CAT, DOG, OWL = (toy_image(5, 8, content) for content in ("cat", "dog", "owl"))
WORD_BYTES, NUM_WORDS = 8, 40


class Bench(SteppedEngine):
    """An engine whose images are provided when the test says so: `lane.run`."""

    def __init__(self, options: FakeOptions | None = None, **given: Any) -> None:
        super().__init__(options or FakeOptions(eos_every=0, images=ToyImages()), **given)
        self.desk.lane = self.lane = HeldLane()

    def finish(self) -> None:
        """Runs everything to its end; nothing of an image is held by a sequence then."""
        for _ in range(1_000):
            self.loop.step()
            self.lane.run()
            if not self.loop.is_busy:
                assert self.loop.images.used_bytes == 0
                assert self.loop.images.check_integrity() == []
                return
        raise AssertionError("a request never ends")

    def chunks(self, id: str) -> list[tuple[int, int]]:
        return [(event.start, event.end) for event in self.events(PrefillChunkComputed) if event.id == id]

    @property
    def num_passes(self) -> int:
        return len(self.events(ImageSeen))


def alone(parts: Parts, num_tokens: int = 12, options: FakeOptions | None = None) -> list[int]:
    bench = Bench(options)
    bench.ask("alone", parts, num_tokens)
    bench.finish()
    return bench.tokens("alone")


def test_a_prompt_is_computed_up_to_an_image_that_is_not_prepared_and_others_go_on() -> None:
    bench, parts = Bench(), ("x" * 70, CAT, " what is it?")
    bench.ask("seeing", parts)
    bench.submit("text", range(100))
    bench.step(30)
    assert bench.chunks("seeing") == [(0, 32), (32, 64)]
    assert len(bench.tokens("text")) == 12
    assert not bench.loop.step(), "it waits for a worker"
    assert bench.lane.run() == 1
    bench.finish()
    assert bench.chunks("seeing")[2][0] == 64
    assert bench.tokens("seeing") == alone(parts)


def test_images_are_prepared_when_the_prompt_comes_near() -> None:
    bench = Bench()
    bench.ask("a", (CAT, "x" * 200, DOG, "?"))
    bench.step(3)
    assert bench.lane.num_pending == 1
    bench.lane.run()
    bench.finish()
    assert bench.num_passes == 2


def test_images_that_were_restored_are_not_prepared() -> None:
    bench, parts = Bench(), ("look: ", CAT, " and ", DOG, " what do you see there?")
    bench.ask("first", parts)
    bench.finish()
    bench.loop.images.shrink(0)
    bench.ask("again", parts)
    bench.step(20)
    assert bench.lane.num_pending == 0
    assert bench.tokens("again") == bench.tokens("first") == alone(parts)
    bench.finish()
    assert bench.num_passes == 2


def test_a_conversation_of_five_turns_over_two_images_needs_two_passes() -> None:
    bench, parts = Bench(), ("be brief. ", CAT, " what is it?")
    for turn in range(5):
        bench.ask(f"turn {turn}", parts)
        bench.finish()
        more = (DOG, " and this? ") if turn == 1 else (f" question {turn}? ",)
        parts = (*parts, *more)
    assert bench.num_passes == 2
    assert all(bench.end(f"turn {turn}").error is None for turn in range(5))


def test_an_image_is_asked_for_again_when_the_request_that_asked_has_ended() -> None:
    bench = Bench(reuses=False)
    for id in ("first", "second", "third"):
        bench.ask(id, (id, CAT, "?"))
    bench.step(3)
    assert bench.desk.num_wanted == 1
    bench.desk.lane, lost = HeldLane(), bench.desk.lane
    bench.loop.cancel(RequestId("first"))
    assert bench.desk.num_wanted == 2
    bench.loop.cancel(RequestId("third"))
    assert bench.desk.num_wanted == 2
    bench.lane = bench.desk.lane
    bench.finish()
    assert (bench.end("second").error, bench.num_passes) == (None, 1)
    assert lost.run() == 1, "it comes when nobody waits, and is ignored"
    assert bench.loop.images.check_integrity() == []


def test_an_image_that_cannot_be_provided_fails_its_request() -> None:
    bench = Bench()
    bench.ask("a", (toy_image(2, 2, "broken"), DOG, "?"))
    bench.ask("b", (DOG, "?"))
    bench.finish()
    error = bench.end("a").error
    assert error is not None
    assert (error.kind, error.message) == ("InvalidRequest", "the image is broken: send another file")
    assert bench.end("b").error is None


def test_a_pass_of_the_tower_that_fails_fails_its_request_only() -> None:
    def breaks(operation: str, _id: SequenceId | None, call: int) -> None:
        if (operation, call) == ("encode_image", 0):
            raise ComputeFailed("planted")

    bench = Bench(FakeOptions(eos_every=0, images=ToyImages(), hook=breaks))
    bench.ask("a", (CAT, "?"))
    bench.ask("b", (DOG, "?"))
    bench.finish()
    assert [getattr(bench.end(id).error, "message", None) for id in ("a", "b")] == ["planted", None]


def test_a_model_that_does_not_see_fails_a_request_with_an_image() -> None:
    bench = Bench(FakeOptions(eos_every=0))
    bench.ask("a", (CAT, "?"))
    bench.finish()
    assert bench.end("a").error is not None


def test_an_image_that_nobody_waits_for_is_ignored() -> None:
    bench = Bench()
    bench.ask("a", ("x" * 10, CAT, DOG, "?"))
    bench.step(3)
    bench.loop.cancel(RequestId("a"))
    assert bench.lane.run() == 2
    assert bench.loop.images.used_bytes == 0
    bench.step(3)
    assert bench.num_passes == 0


def test_a_preempted_request_sees_again_only_what_was_dropped() -> None:
    bench, parts = Bench(reuses=False), ("look: ", CAT, "x" * 60, " what?")
    bench.ask("a", parts, 20)
    has_begun = False

    def preempts(_step: int, _active: object) -> bool:
        nonlocal has_begun
        was, has_begun = has_begun, len(bench.tokens("a")) > 5
        return has_begun and not was

    bench.guard.preempts = preempts
    bench.finish()
    assert len(bench.events(RequestPreempted)) == 1
    assert bench.num_passes == 1
    assert bench.tokens("a") == alone(parts, 20)


@pytest.fixture(params=[0, WORD_BYTES * NUM_WORDS, 1 << 20], ids=["none", "one", "all"])
def kept(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_features_are_kept_up_to_a_bound(kept: int) -> None:
    bench = Bench(reuses=False)
    bench.loop.images.max_kept_bytes = kept
    for number, image in enumerate((CAT, DOG, CAT, DOG)):
        bench.ask(f"{number}", ("look: ", image, "?"))
        bench.finish()
        assert bench.loop.images.kept_bytes <= kept
    assert bench.num_passes == (2 if kept > WORD_BYTES * NUM_WORDS else 4)
    assert bench.tokens("0") == bench.tokens("2") == alone(("look: ", CAT, "?"))


def test_the_least_recently_used_features_go_first() -> None:
    bench = Bench(reuses=False)
    bench.loop.images.max_kept_bytes = 2 * WORD_BYTES * NUM_WORDS
    for number, image in enumerate((CAT, DOG, CAT, OWL, CAT)):
        bench.ask(f"{number}", ("look: ", image, "?"))
        bench.finish()
    assert bench.num_passes == 3
    bench.ask("again", ("look: ", DOG, "?"))
    bench.finish()
    assert bench.num_passes == 4


def test_clearing_the_cache_drops_features_also_those_in_use() -> None:
    bench = Bench()
    bench.ask("before", (DOG, "?"))
    bench.finish()
    bench.ask("during", (CAT, "x" * 200))
    bench.step(2)
    bench.lane.run()
    bench.step(1)
    assert bench.num_passes == 2
    bench.cache.clear(None, None)
    bench.finish()
    assert bench.loop.images.kept_bytes == 0
    for id, image in (("after", CAT), ("last", CAT)):
        bench.ask(id, (image, "?"))
        bench.finish()
    assert bench.num_passes == 3


def test_unloading_a_model_drops_its_features() -> None:
    bench = Bench()
    bench.ask("a", (CAT, "?"))
    bench.finish()
    assert bench.loop.images.kept_bytes > 0
    bench.loop.unload(MODEL)
    assert bench.loop.images.kept_bytes == 0


@pytest.mark.parametrize("lead", [0, 1, 20, 31, 32, 50])
@pytest.mark.parametrize("image", [CAT, toy_image(1, 9, "small"), toy_image(12, 12, "larger than the grid")])
def test_no_chunk_ends_in_an_image_that_attends_to_itself(lead: int, image: Any) -> None:
    options = FakeOptions(eos_every=0, images=ToyImages(), image_is_whole=True)  # the toy raises where one is cut
    for tail in ("", "?", "x" * 90):
        bench, parts = Bench(options), ("x" * lead, image, tail)
        bench.ask("a", parts)
        bench.finish()
        assert bench.end("a").error is None, tail
        (span,) = prompt_of(parts).media
        assert all(not span.start < end < span.end for _, end in bench.chunks("a"))
        assert max(end - start for start, end in bench.chunks("a")) <= max(GRID, span.length)


def test_a_prompt_that_resumes_in_an_image_that_attends_to_itself_is_not_cut_again() -> None:
    """A block ends inside: it holds what all of the image gave, and the rest is one chunk."""
    options = FakeOptions(eos_every=0, images=ToyImages(), image_is_whole=True)
    bench, large = Bench(options), toy_image(12, 12, "large")
    bench.ask("first", ("x" * 20, large, "y" * 30))
    bench.finish()
    bench.ask("second", ("x" * 20, large, "z" * 40))
    bench.finish()
    assert bench.end("second").usage.reused_tokens == 176
    assert bench.tokens("second") == alone(("x" * 20, large, "z" * 40), options=options)


def test_no_draft_holds_a_placeholder() -> None:
    """What followed the same words in the prompt is an image: the draft ends there, by an id that no model has."""
    asked = submission("a", MODEL, prompt_of(("say qrstuvw", CAT, "!")), 20)
    model = Bench(FakeOptions(eos_every=0, images=ToyImages(), width_costs=CHEAP)).model.description
    for output, expected in ((b"so: say qrst", b"uvw"), (b"so: say qrstuvw", b"")):
        sequence = Sequence(SequenceId(0), asked.prompt.token_ids, 20, output_ids=list(output))
        proposal = SequenceDrafts(sequence, asked, model).look_up(8)
        assert proposal is not None
        assert proposal.token_ids[: len(expected) + 1] == (*expected, LARGEST_ID)


def test_an_image_whose_features_are_kept_is_not_prepared() -> None:
    bench = Bench(reuses=False)
    for id in ("a", "b"):
        bench.ask(id, (id, CAT, "?"))
        bench.step(3)
        assert bench.lane.num_pending == (id == "a")
        bench.finish()


def test_the_pixels_and_features_in_use_are_counted_until_the_image_is_passed() -> None:
    bench = Bench()
    bench.ask("a", ("x" * 40, CAT, "y" * 60))
    (run,) = bench.loop._runs.values()
    bench.step(2)
    assert run.view().unseen == (45, 45)
    bench.lane.run()
    bench.step()
    assert run.view().unseen == (0, 0)
    assert bench.loop.images.used_bytes == NUM_WORDS * WORD_BYTES
    bench.finish()
    assert bench.loop.images.kept_bytes == NUM_WORDS * WORD_BYTES


def test_an_image_of_two_requests_is_prepared_and_seen_once() -> None:
    bench = Bench(reuses=False)
    for id in ("a", "b"):
        bench.ask(id, (id, CAT, "?"))
    bench.step(3)
    assert bench.lane.num_pending == 1
    bench.finish()
    assert bench.num_passes == 1
