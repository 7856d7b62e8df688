"""What can never fit in memory, and what could instead: decided from the model's shape alone."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from adapters.mlx.runtime.device import CPU_LAST_CHUNK, CUDA_LAST_CHUNK, METAL_LAST_CHUNK
from domain.memory.needs import Load, needed
from domain.memory.preflight import Preflight
from domain.memory.pressure import StepDemand
from domain.memory.shape import NUM_LAST_TOKENS, ImageCost, ImageSizes, MemoryShape, StateCost, StepCost
from domain.scheduling.memory_demand import charge_bytes, demand_of
from domain.scheduling.sequence import Phase
from domain.speculation.gain import WIDTHS
from tests.support.engines.sequence_views import view_of

KV = MemoryShape(weight_bytes=1_000, states=(StateCost(10, step=1),))
PEAKED = replace(KV, step=StepCost(pair_bytes=1), logit_bytes=100)


def preflight(shape: MemoryShape = KV, room_bytes: int = 10_000) -> Preflight:
    return Preflight(shape, 1_000 + room_bytes, 1_000)


shapes = st.builds(
    MemoryShape,
    states=st.lists(
        st.builds(
            StateCost,
            st.integers(0, 50),
            window=st.none() | st.integers(1, 300),
            fixed_bytes=st.integers(0, 5_000),
            step=st.sampled_from([1, 256]),
        ),
        max_size=3,
    ).map(tuple),
    step=st.builds(
        StepCost,
        base_bytes=st.integers(0, 1_000),
        token_bytes=st.integers(0, 20),
        seen_bytes=st.integers(0, 5),
        pair_bytes=st.integers(0, 3),
    ),
    logit_bytes=st.integers(0, 500),
    sample_bytes=st.integers(0, 500),
    image=st.builds(
        ImageCost,
        prepared_bytes=st.integers(0, 50),
        feature_bytes=st.integers(0, 20),
        tower=st.builds(
            StepCost, base_bytes=st.integers(0, 9_000), token_bytes=st.integers(0, 50), pair_bytes=st.integers(0, 3)
        ),
    ),
)
loads = st.one_of(
    st.builds(Load, st.integers(1, 3_000), st.integers(0, 3_000), st.integers(1, 600), num_choices=st.integers(1, 5)),
    st.builds(
        Load,
        st.integers(1, 3_000),
        st.integers(0, 3_000),
        st.integers(1, 600),
        images=st.builds(ImageSizes, st.integers(0, 2_000), st.integers(0, 3_000)),
    ),
)


def test_what_is_refused_says_what_would_fit():
    refusal = preflight().refusal(Load(700, 400, 10))
    assert refusal is not None
    assert (refusal.needed_bytes, refusal.available_bytes, refusal.limit_bytes) == (11_000, 10_000, 11_000)
    assert refusal.most_prompt == 600
    assert preflight().most_new(Load(700, 400, 10)) == 300
    assert preflight().most_new(Load(1_001, 400, 10)) == -1


def test_a_model_that_leaves_no_room_at_all():
    refusal = preflight(room_bytes=-500).refusal(Load(1, 1))
    assert refusal is not None
    assert (refusal.available_bytes, refusal.most_prompt) == (0, 0)


def test_every_choice_counts():
    assert preflight().fits(Load(200, 50, 10, num_choices=4))
    assert not preflight().fits(Load(200, 50, 10, num_choices=5))


def test_a_chunk_is_copied_and_looks_at_all_before_it():
    wide = preflight(PEAKED, room_bytes=0)
    assert wide.needed_bytes(Load(1_000, 0, 100)) == 10_000 + 100 * 10 + 100 * 1_000 + 100 * 100


def test_a_scored_prompt_has_logits_for_every_token():
    wide = preflight(PEAKED, room_bytes=0)
    scored, plain = Load(1_000, 0, 600, is_scored=True), Load(1_000, 0, 600)
    assert wide.needed_bytes(scored) - wide.needed_bytes(plain) == 600 * 100


@given(shapes, loads, st.integers(0, 200_000))
def test_what_a_refusal_offers_fits_and_one_more_does_not(shape: MemoryShape, load: Load, room_bytes: int):
    flight = preflight(shape, room_bytes)
    refusal = flight.refusal(load)
    assert (refusal is None) == flight.fits(load)
    if refusal is None:
        return
    assert refusal.needed_bytes > room_bytes
    assert refusal.most_prompt < load.num_prompt
    if refusal.most_prompt:
        assert flight.fits(replace(load, num_prompt=refusal.most_prompt))
    assert not flight.fits(replace(load, num_prompt=refusal.most_prompt + 1))
    most_new = flight.most_new(load)
    if most_new >= 0:
        assert flight.fits(replace(load, num_new=most_new))
    assert not flight.fits(replace(load, num_new=most_new + 1))


@given(shapes, st.integers(1, 30_000), st.integers(1, 3_000), st.data())
def test_what_fits_is_admitted_and_computed_when_nothing_else_runs(
    shape: MemoryShape, num_prompt: int, num_new: int, data: st.DataObject
):
    """Alone, no position of a prompt takes more than its admission asked for, and neither takes more than preflight
    counts; no more does decoding, because no sequence is preempted for a draft."""
    grid, largest = 512, data.draw(st.integers(0, min(num_prompt, 2_000)))
    unseen = ImageSizes(largest, min(num_prompt, largest + data.draw(st.integers(0, 2 * grid))))
    is_whole, width = data.draw(st.booleans()), data.draw(st.sampled_from([1, WIDTHS[-1]]))
    is_scored = data.draw(st.booleans())
    longest = max(grid, largest) if is_whole else grid
    most = needed(shape, Load(num_prompt, num_new, longest, is_scored=is_scored, images=unseen)).total
    charge = charge_bytes(shape, num_prompt, num_new, grid)

    def alone(phase: Phase, num_computed: int) -> StepDemand:
        prompt = {"is_scored": is_scored, "unseen": unseen, "whole": ((0, largest),) if is_whole else ()}
        facts = {"width": width} if phase is Phase.DECODING else prompt
        view = view_of(1, phase, num_prompt, num_computed, charge_bytes=charge, **facts)
        return demand_of([view], {view.id: shape}, grid, view if phase is Phase.QUEUED else None)

    waiting = alone(Phase.QUEUED, 0).waiting_bytes
    position = data.draw(st.integers(0, num_prompt - 1))
    step = alone(Phase.PREFILLING, position)
    assert step.state_bytes + largest * shape.image.feature_bytes + step.begun_bytes <= waiting <= most
    position = data.draw(st.integers(num_prompt, num_prompt + num_new - 1))
    step = alone(Phase.DECODING, position)
    assert shape.state_bytes(position) + step.begun_bytes <= most


def test_a_lone_prompt_asks_for_no_more_where_its_buffers_grow_by_more_than_a_chunk():
    """The cache copies the tokens of a chunk, whatever the spare slots of a deep buffer and a window that is full."""
    shape, grid, num_prompt = MemoryShape(states=(StateCost(10), StateCost(7, window=1_024))), 512, 20_000
    charge, most = charge_bytes(shape, num_prompt, 1, grid), needed(shape, Load(num_prompt, 1, grid)).total
    for position in range(0, num_prompt, 64):
        view = view_of(1, Phase.PREFILLING, num_prompt, position, charge_bytes=charge)
        step = demand_of([view], {view.id: shape}, grid, None)
        assert step.state_bytes + step.begun_bytes <= most, position


def test_logits_are_charged_of_as_many_tokens_as_the_last_chunk_may_have() -> None:
    assert max(CPU_LAST_CHUNK, METAL_LAST_CHUNK, CUDA_LAST_CHUNK) <= NUM_LAST_TOKENS
