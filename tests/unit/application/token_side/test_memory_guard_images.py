"""The memory guard over images: pixels, features and passes of the tower are counted, and kept features go first."""

from dataclasses import replace

from adapters.fake.environment import FakeClock
from adapters.fake.leaves import Words
from adapters.fake.vision import ToyWords
from application.services.memory_leases import Lease, Purpose
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.images import EngineImages
from domain.ids import ModelId, SequenceId
from domain.memory.shape import ImageCost, ImageSizes, StepCost
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import SequenceView
from tests.support.stores.store_records import sized_record
from tests.unit.application.token_side.test_memory_guard import CHUNK, LIMITS, SHAPE, Bench, view

SEEING = replace(
    SHAPE, image=ImageCost(prepared_bytes=3, feature_bytes=2, tower=StepCost(base_bytes=50, token_bytes=7))
)


def test_a_step_counts_pixels_features_and_the_pass_of_the_tower():
    """Of two prompts the pixels together; of the chunk's peak and the pass of the tower the larger one."""
    bench = Bench(limits=None)
    ahead, behind = view(1, Phase.PREFILLING, 1_024, 4_000), view(2, Phase.PREFILLING, 512, 4_000)

    def transient(*views: SequenceView) -> int:
        bench.guard.limits = bench.guard._readings._limits = LIMITS
        bench.guard.budget(views, {view.id: SEEING for view in views})
        return bench.guard.ledger.transient_bytes

    without = transient(ahead, behind)
    small, large = replace(ahead, unseen=ImageSizes(10, 40)), replace(ahead, unseen=ImageSizes(2_000, 2_000))
    assert transient(small, behind) == without + 3 * 40 + 2 * (10 + CHUNK)
    assert transient(small, replace(behind, unseen=ImageSizes(10, 60))) == without + 3 * 100 + 2 * (10 + CHUNK)
    assert transient(large, behind) == CHUNK + 3 * 2_000 + 50 + 7 * 2_000 + 2 * (2_000 + CHUNK)


def test_an_image_that_no_chunk_may_cut_is_a_chunk():
    bench, whole = Bench(), replace(view(1, Phase.PREFILLING, 1_024, 9_000), whole=((1_024, 1_024 + 2_000),))
    bench.budget(whole)
    growth_and_copy, peak = 2 * 2_000, 2_000
    assert bench.guard.ledger.transient_bytes == growth_and_copy + peak


def test_a_sequence_with_an_image_waits_for_the_pass_of_the_tower_too():
    bench = Bench()
    queued = view(1, Phase.QUEUED, 0, 4_000)
    room = [
        bench.guard.budget((one,), {one.id: SEEING}).room_bytes or 0
        for one in (queued, replace(queued, unseen=ImageSizes(2_000, 3_000)))
    ]
    # Alone, both are beyond the state of the prompt, and larger than the charge with its answer of 100 tokens.
    pixels, tower_pass, features_before = 3 * 3_000, 50 + 7 * 2_000 + 2 * (2_000 + CHUNK), 2 * 2_000
    copy_and_work = 2 * CHUNK
    assert room[0] - room[1] == pixels + tower_pass + features_before - copy_and_work


class KeptFeatures(EngineImages):
    """Features of 1,000 bytes each that no sequence uses."""

    def __init__(self, number: int) -> None:
        super().__init__(EventBatcher(FakeClock()), 1_000)
        for at in range(number):
            key = (ModelId("toy"), "", bytes((at,)), 0)
            found = self.use(key, SequenceId(at), lambda: None)
            found.features = ToyWords(Words("Q", range(125)))
            self.give_back(key, SequenceId(at))


def test_features_are_counted_and_dropped_before_anything_else_that_is_kept():
    bench = Bench(hot_bytes=20_000)
    bench.guard.images = KeptFeatures(8)
    bench.load(60_000)
    bench.hot.put([sized_record(1, 10_000)])
    bench.budget(view(1, Phase.DECODING, 5_000, 5_000))
    assert (bench.guard.ledger.live_bytes, bench.actions()) == (8_000, [])
    bench.budget(view(1, Phase.DECODING, 5_000, 5_000), view(2, Phase.DECODING, 8_000, 8_000))
    assert bench.guard.images.kept_bytes < 8_000
    assert "drop_features" in bench.actions()
    assert bench.hot.usage().used_bytes > 10_000


def test_features_in_use_are_in_flight():
    bench = Bench()
    bench.guard.images = images = KeptFeatures(8)
    images.use((ModelId("toy"), "", bytes((3,)), 0), SequenceId(1), lambda: None)
    bench.budget(view(1, Phase.DECODING, 1_000, 1_000))
    assert (bench.guard.ledger.live_bytes, bench.guard.ledger.flight_bytes) == (7_000, 1_000)


def test_features_make_room_for_a_model():
    bench = Bench()
    bench.guard.images = KeptFeatures(30)
    bench.load(60_000)
    bench.budget(view(1, Phase.DECODING, 1_000, 1_000))
    assert isinstance(bench.leases.reserve(Purpose.WEIGHTS, 25_000), Lease)
    assert bench.guard.images.kept_bytes < 30_000
