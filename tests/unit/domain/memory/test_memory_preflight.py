"""What can never fit in memory, and what could instead: decided from the model's shape alone."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from adapters.mlx.runtime.device import CPU_LAST_CHUNK, CUDA_LAST_CHUNK, METAL_LAST_CHUNK
from domain.ids import SequenceId
from domain.memory.preflight import Demand, Preflight
from domain.memory.shape import NUM_LAST_TOKENS, ImageCost, ImageSizes, MemoryShape, StateCost, StepCost
from domain.scheduling.memory_demand import charge_bytes, demand_of
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import SequenceView
from domain.speculation.gain import WIDTHS

KV = MemoryShape(weight_bytes=1_000, states=(StateCost(10, step=1),))
PEAKED = replace(KV, step=StepCost(pair_bytes=1), logit_bytes=100)


def preflight(shape: MemoryShape = KV, room_bytes: int = 10_000, max_chunk: int = 10) -> Preflight:
    return Preflight(shape, 1_000 + room_bytes, 1_000, max_chunk)


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
demands = st.one_of(
    st.builds(Demand, st.integers(1, 3_000), st.integers(0, 3_000), num_choices=st.integers(1, 5)),
    st.builds(
        Demand,
        st.integers(1, 3_000),
        st.integers(0, 3_000),
        images=st.builds(ImageSizes, st.integers(0, 2_000), st.integers(0, 3_000)),
    ),
)


def test_what_is_refused_says_what_would_fit():
    refusal = preflight().refusal(Demand(700, 400), shortest=1)
    assert refusal is not None
    assert (refusal.needed_bytes, refusal.available_bytes, refusal.limit_bytes) == (11_000, 10_000, 11_000)
    assert (refusal.most_prompt, refusal.most_new) == (600, 300)


def test_a_prompt_too_long_for_any_answer_is_refused_with_the_shortest_one():
    refusal = preflight().refusal(Demand(1_200, 500), shortest=20)
    assert refusal is not None
    assert (refusal.demand.num_new, refusal.most_new, refusal.most_prompt) == (20, 0, 980)


def test_a_model_that_leaves_no_room_at_all():
    refusal = preflight(room_bytes=-500).refusal(Demand(1, 1), shortest=1)
    assert refusal is not None
    assert (refusal.available_bytes, refusal.most_prompt, refusal.most_new) == (0, 0, 0)


def test_every_choice_counts():
    assert preflight().fits(Demand(200, 50, num_choices=4))
    assert not preflight().fits(Demand(200, 50, num_choices=5))


def test_a_chunk_is_copied_and_looks_at_all_before_it():
    wide = preflight(PEAKED, room_bytes=0, max_chunk=100)
    assert wide.needed_bytes(Demand(1_000, 0)) == 10_000 + 100 * 10 + 100 * 1_000 + 100 * 100


def test_a_scored_prompt_has_logits_for_every_token():
    wide = preflight(PEAKED, room_bytes=0, max_chunk=600)
    scored, plain = Demand(1_000, 0, is_scored=True), Demand(1_000, 0)
    assert wide.needed_bytes(scored) - wide.needed_bytes(plain) == 600 * 100


@given(shapes, demands, st.integers(0, 200_000), st.integers(1, 600), st.integers(1, 50))
def test_what_a_refusal_offers_fits_and_one_more_does_not(
    shape: MemoryShape, demand: Demand, room_bytes: int, max_chunk: int, shortest: int
):
    flight = preflight(shape, room_bytes, max_chunk)
    refusal = flight.refusal(demand, shortest)
    assert (refusal is None) == flight.fits(demand)
    if refusal is None:
        return
    told = refusal.demand
    assert not flight.fits(told)
    assert refusal.needed_bytes > room_bytes
    assert refusal.most_prompt < told.num_prompt
    if refusal.most_prompt:
        assert flight.fits(replace(told, num_prompt=refusal.most_prompt))
    assert not flight.fits(replace(told, num_prompt=refusal.most_prompt + 1))
    if refusal.most_new:
        assert shortest <= refusal.most_new < told.num_new
        assert flight.fits(replace(told, num_new=refusal.most_new))
        assert not flight.fits(replace(told, num_new=refusal.most_new + 1))


@given(shapes, st.integers(1, 3_000), st.integers(1, 3_000), st.data())
def test_what_fits_is_admitted_and_computed_when_nothing_else_runs(
    shape: MemoryShape, num_prompt: int, num_new: int, data: st.DataObject
):
    """Alone, the guard's sums never ask for more, at any position: what is verified of drafts preempts nobody."""
    grid, largest = 512, data.draw(st.integers(0, num_prompt))
    unseen = ImageSizes(largest, min(num_prompt, largest + data.draw(st.integers(0, 2 * grid))))
    is_whole, width = data.draw(st.booleans()), data.draw(st.sampled_from([1, WIDTHS[-1]]))
    demanded = Demand(num_prompt, num_new, images=unseen)
    needed = Preflight(shape, 0, 0, grid, image_is_whole=is_whole).needed_bytes(demanded)
    charge = charge_bytes(shape, num_prompt, num_new, grid)

    def alone(phase: Phase, num_computed: int) -> tuple[int, int]:
        view = SequenceView(SequenceId(1), phase, num_computed, num_prompt, charge_bytes=charge, width=width)
        if phase is not Phase.DECODING:
            view = replace(view, unseen=unseen, whole=((0, largest),) if is_whole else ())
        demand = demand_of([view], {view.id: shape}, grid, view if phase is Phase.QUEUED else None)
        return demand.waiting_bytes, demand.begun_bytes

    assert alone(Phase.QUEUED, 0)[0] <= needed
    position = data.draw(st.integers(0, num_prompt - 1))
    held = shape.state_bytes(position) + largest * shape.image.feature_bytes
    assert held + alone(Phase.PREFILLING, position)[1] <= needed
    position = data.draw(st.integers(num_prompt, num_prompt + num_new - 1))
    assert shape.state_bytes(position) + alone(Phase.DECODING, position)[1] <= needed


def test_logits_are_charged_of_as_many_tokens_as_the_last_chunk_may_have() -> None:
    assert max(CPU_LAST_CHUNK, METAL_LAST_CHUNK, CUDA_LAST_CHUNK) <= NUM_LAST_TOKENS
