"""The state machine of resident models: leases in order of arrival, room by bytes and by number, no starvation."""

import pytest

from domain.ids import ModelId
from domain.memory.ledger import MemoryLedger, MemoryLimits
from domain.models.residency import LoadModel, LoadRoom, ModelResidency, Residence, UnloadModel

A, B, C, D = (ModelId(name) for name in "abcd")


def leased_models(*loaded: ModelId, max_loaded: int) -> ModelResidency:
    """Models that are loaded and leased once each."""
    models = ModelResidency(max_loaded)
    for number, id in enumerate(loaded):
        models.request(id, 1000 + number)
        assert models.next_move() == LoadModel(id)
        models.loaded(id)
        assert models.take_granted() == [1000 + number]
    return models


def idle_models(limit_bytes: int, *loaded: tuple[ModelId, int], max_loaded: int | None = None) -> ModelResidency:
    """Models that are loaded and idle, the first least recently used."""
    models = ModelResidency(max_loaded, LoadRoom(limit_bytes))
    for number, (id, num_bytes) in enumerate(loaded):
        models.request(id, 1000 + number, num_bytes)
        assert models.next_move() == LoadModel(id)
        models.loaded(id)
        assert models.take_granted() == [1000 + number]
        models.release(id)
    return models


def moves(models: ModelResidency) -> list[LoadModel | UnloadModel]:
    """Every move until there is none, each carried out at once."""
    done: list[LoadModel | UnloadModel] = []
    while (move := models.next_move()) is not None:
        done.append(move)
        models.loaded(move.id) if isinstance(move, LoadModel) else models.unloaded(move.id)
    return done


# ---- by number -------------------------------------------------------------------------------------------------------


def test_a_waiting_request_gets_its_lease_at_the_end_of_the_load() -> None:
    models = ModelResidency(1)
    models.request(A, 1)
    models.request(B, 2)
    assert models.next_move() == LoadModel(A)
    models.loaded(A)
    assert models.next_move() is None
    assert models.take_granted() == [1]
    models.release(A)
    assert models.next_move() == UnloadModel(A)
    models.unloaded(A)
    assert models.next_move() == LoadModel(B)


def test_an_evictee_gives_no_new_leases_and_is_loaded_next() -> None:
    models = leased_models(A, max_loaded=1)
    models.request(B, 1)
    models.request(A, 2)
    assert models.take_granted() == []
    models.release(A)
    assert models.next_move() == UnloadModel(A)
    models.unloaded(A)
    assert models.next_move() == LoadModel(B)
    models.loaded(B)
    assert models.take_granted() == [1]
    models.request(B, 3)
    assert models.take_granted() == [], "B is the evictee now"
    models.release(B)
    assert models.next_move() == UnloadModel(B)


def test_room_of_a_pinned_model_is_waited_for_until_it_is_unpinned() -> None:
    models = leased_models(A, max_loaded=1)
    models.release(A)
    models.pin(A)
    models.request(B, 1)
    assert models.next_move() is None
    models.request(A, 2)
    assert models.take_granted() == [2], "a pinned model is never an evictee"
    models.release(A)
    models.unpin(A)
    assert models.next_move() == UnloadModel(A)


def test_a_model_that_becomes_idle_first_is_unloaded_instead() -> None:
    models = leased_models(A, B, max_loaded=2)
    models.request(C, 1)
    models.request(A, 2)
    models.release(B)
    assert models.next_move() == UnloadModel(B)
    assert models.take_granted() == [2]


def test_a_withdrawn_request_lets_the_others_in() -> None:
    models = leased_models(A, max_loaded=1)
    models.request(B, 1)
    models.request(A, 2)
    models.withdraw(B, 1)
    assert models.take_granted() == [2]
    assert models.next_move() is None


def test_the_next_model_during_an_unload_does_not_wait_for_room() -> None:
    models = leased_models(A, max_loaded=1)
    models.request(B, 1)
    models.request(C, 2)
    assert models.waits_for_room(B, 1)
    models.release(A)
    assert models.next_move() == UnloadModel(A)
    assert not models.waits_for_room(B, 1)
    assert models.waits_for_room(C, 2)
    models.unloaded(A)
    assert models.next_move() == LoadModel(B)
    assert not models.waits_for_room(B, 1)


def test_a_failed_load_returns_all_its_tickets() -> None:
    models = ModelResidency(1)
    models.request(A, 1)
    assert models.next_move() == LoadModel(A)
    models.request(A, 2)
    models.request(B, 3)
    assert models.failed(A) == (1, 2)
    assert models.next_move() == LoadModel(B)


def test_a_lease_is_added_at_once_and_needs_another() -> None:
    models = leased_models(A, max_loaded=1)
    models.request(B, 1)
    assert models.add_lease(A)
    models.release(A)
    assert models.next_move() is None
    models.release(A)
    assert not models.add_lease(A)
    with pytest.raises(ValueError, match="there is no lease"):
        models.release(A)


# ---- by bytes --------------------------------------------------------------------------------------------------------


def test_a_model_that_fits_unloads_no_other() -> None:
    models = idle_models(100, (A, 30), (B, 30))
    models.request(C, 1, 40)
    assert moves(models) == [LoadModel(C)]


def test_as_few_models_as_possible_are_evicted_the_least_recently_used_first() -> None:
    models = idle_models(100, (A, 30), (B, 30), (C, 30))
    models.request(D, 1, 45)
    assert moves(models) == [UnloadModel(A), UnloadModel(B), LoadModel(D)]


def test_a_small_model_stays_if_a_large_one_has_to_go_anyway() -> None:
    models = idle_models(100, (A, 10), (B, 80))
    models.request(C, 1, 60)
    assert moves(models) == [UnloadModel(B), LoadModel(C)]


def test_no_evictee_is_unloaded_before_all_are_idle() -> None:
    models = idle_models(100, (A, 50), (B, 50))
    models.request(B, 1)
    models.request(C, 2, 90)
    assert models.next_move() is None, "evicting A alone would not help"
    models.request(A, 3)
    assert models.take_granted() == [1], "an evictee gives no new leases"
    models.release(B)
    assert moves(models)[:3] == [UnloadModel(A), UnloadModel(B), LoadModel(C)]


def test_memory_of_requests_counts_until_they_end() -> None:
    models = idle_models(100, (A, 40))
    models.room = LoadRoom(100, fixed_bytes=5, busy_bytes=30)
    models.request(B, 1, 30)
    assert models.next_move() == UnloadModel(A)
    models.unloaded(A)
    models.room = LoadRoom(100, fixed_bytes=5, busy_bytes=70)
    assert models.next_move() is None
    models.room = LoadRoom(100, fixed_bytes=5)
    assert models.next_move() == LoadModel(B)


def test_a_model_without_room_does_not_block_the_next() -> None:
    models = idle_models(100)
    models.room = LoadRoom(100, busy_bytes=60)
    models.request(A, 1, 50)
    models.request(B, 2, 30)
    assert models.next_move() == LoadModel(B)
    assert models.waits_for_room(A, 1)


def test_a_model_that_fits_waits_for_loads_only() -> None:
    models = idle_models(100)
    for ticket, (id, num_bytes) in enumerate([(A, 40), (B, 30), (C, 30), (D, 70)]):
        models.request(id, ticket, num_bytes)
    assert models.next_move() == LoadModel(A)
    assert [models.waits_for_room(id, ticket) for ticket, id in enumerate((A, B, C, D))] == [False, False, False, True]


def test_a_model_that_fits_is_loaded_before_one_that_waits_for_requests_and_does_not_starve_it() -> None:
    models = idle_models(100, (A, 40))
    models.request(A, 1)
    models.request(B, 2, 70)
    models.request(C, 3, 30)
    assert models.next_move() == LoadModel(C)
    models.loaded(C)
    assert models.take_granted() == [1, 3]
    models.request(C, 4)
    assert not models.waits_for_room(C, 3)
    models.release(A)
    assert moves(models)[:2] == [UnloadModel(A), LoadModel(B)], "C stays: 70 and 30 fit"
    models.request(A, 5, 40)
    models.request(C, 6)
    assert models.waits_for_room(A, 5)


def test_a_model_does_not_wait_for_room_while_all_that_would_be_evicted_are_idle() -> None:
    models = idle_models(100, (A, 60))
    models.request(B, 1, 10)
    models.request(C, 2, 40)
    assert models.next_move() == LoadModel(B)
    assert not models.waits_for_room(C, 2)


def test_pinned_models_stay_and_count() -> None:
    models = idle_models(100, (A, 60), (B, 30))
    models.pin(A)
    models.request(C, 1, 35)
    assert moves(models) == [UnloadModel(B), LoadModel(C)]
    assert models.never_fits(D, 40) is None
    assert models.never_fits(D, 41) == 40
    assert models.never_fits(A, 100) is None, "a model is no obstacle to itself"
    models.unpin(A)
    assert models.never_fits(D, 100) is None
    assert models.never_fits(D, 101) == 100


def test_only_leased_and_pinned_models_are_fixed_and_idle_ones_make_room() -> None:
    models = idle_models(100, (A, 10), (B, 30), (C, 40))
    models.pin(B)
    models.request(A, 1)
    assert models.fixed_bytes(A, with_leased=False) == models.fixed_bytes(A, with_leased=True) == 40
    models.request(C, 2)
    assert (models.fixed_bytes(A, with_leased=False), models.fixed_bytes(A, with_leased=True)) == (40, 80)
    assert models.make_room(50) == [], "a leased model stays"
    models.release(C)
    assert models.make_room(80) == []
    assert models.make_room(79) == [C]
    assert moves(models) == [UnloadModel(C)]
    assert not models.is_unloading(C)


def test_a_requested_unload_happens_after_the_last_lease_and_can_be_followed_by_a_load() -> None:
    models = idle_models(100, (A, 10))
    models.pin(A)
    models.request(A, 1)
    models.unload_when_idle(A)
    models.request(A, 2)
    assert models.take_granted() == [1]
    assert models.next_move() is None
    models.release(A)
    assert models.next_move() == UnloadModel(A)
    models.unloaded(A)
    assert models.next_move() == LoadModel(A)
    models.loaded(A)
    assert models.take_granted() == [2]
    models.unload_when_idle(B)
    assert models.residence(B) is Residence.ABSENT


def test_both_bounds_hold() -> None:
    models = idle_models(100, (A, 1), (B, 1), max_loaded=2)
    models.request(C, 1, 1)
    assert moves(models) == [UnloadModel(A), LoadModel(C)]


def test_a_model_may_be_larger_than_expected() -> None:
    models = idle_models(100)
    models.request(A, 1, 10)
    assert models.next_move() == LoadModel(A)
    models.loaded(A, 90)
    models.release(A)
    models.request(B, 2, 20)
    assert moves(models) == [UnloadModel(A), LoadModel(B)]


@pytest.mark.parametrize(("hot", "room"), [(0, 25), (500, 25)])
def test_the_hot_tier_is_room(hot: int, room: int) -> None:
    limits = MemoryLimits(1100, 900, 950, 1000)
    ledger = MemoryLedger(other_bytes=75, state_bytes=300, growth_bytes=200, hot_bytes=hot, weight_bytes=400)
    found = LoadRoom.of(limits, ledger)
    assert found.available_bytes(400) == 525
    assert found.fits_now(400 + room)
    assert not found.fits_now(400 + room + 1)
    assert LoadRoom.of(None, ledger).fits_now(1 << 60)
