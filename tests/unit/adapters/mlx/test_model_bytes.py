"""Whose turn it is when bytes are what is short: nobody goes in vain, pinned models stay, what never fits is told."""

import pytest

from domain.ids import ModelId
from domain.memory.ledger import MemoryLimits, MemoryUse
from domain.models.residency import LoadModel, LoadRoom, ModelResidency, Residence, UnloadModel

A, B, C, D = (ModelId(name) for name in "abcd")


def turns_with(limit_bytes: int, *loaded: tuple[ModelId, int], max_loaded: int | None = None) -> ModelResidency:
    """Models that are loaded and idle, the first least recently used."""
    turns = ModelResidency(max_loaded, LoadRoom(limit_bytes))
    for number, (id, num_bytes) in enumerate(loaded):
        turns.ask(id, 1000 + number, num_bytes)
        assert turns.next_move() == LoadModel(id)
        turns.loaded(id)
        assert turns.take_granted() == [1000 + number]
        turns.release(id)
    return turns


def moves(turns: ModelResidency) -> list[LoadModel | UnloadModel]:
    """Every move until there is none, each carried out at once."""
    done: list[LoadModel | UnloadModel] = []
    while (move := turns.next_move()) is not None:
        done.append(move)
        turns.loaded(move.id) if isinstance(move, LoadModel) else turns.unloaded(move.id)
    return done


def test_what_fits_beside_the_others_unloads_nobody() -> None:
    turns = turns_with(100, (A, 30), (B, 30))
    turns.ask(C, 1, 40)
    assert moves(turns) == [LoadModel(C)]


def test_as_few_go_as_it_takes_the_least_recently_used_first() -> None:
    turns = turns_with(100, (A, 30), (B, 30), (C, 30))
    turns.ask(D, 1, 45)
    assert moves(turns) == [UnloadModel(A), UnloadModel(B), LoadModel(D)]


def test_a_small_one_stays_where_a_large_one_has_to_go_anyway() -> None:
    turns = turns_with(100, (A, 10), (B, 80))
    turns.ask(C, 1, 60)
    assert moves(turns) == [UnloadModel(B), LoadModel(C)]


def test_nobody_goes_before_all_that_must_go_are_idle() -> None:
    turns = turns_with(100, (A, 50), (B, 50))
    turns.ask(B, 1)
    turns.ask(C, 2, 90)
    assert turns.next_move() is None, "A alone would go in vain"
    turns.ask(A, 3)
    assert turns.take_granted() == [1], "and gives no new leases meanwhile"
    turns.release(B)
    assert moves(turns)[:3] == [UnloadModel(A), UnloadModel(B), LoadModel(C)]


def test_what_requests_hold_counts_until_they_end() -> None:
    turns = turns_with(100, (A, 40))
    turns.room = LoadRoom(100, fixed_bytes=5, busy_bytes=30)
    turns.ask(B, 1, 30)
    assert turns.next_move() == UnloadModel(A)
    turns.unloaded(A)
    turns.room = LoadRoom(100, fixed_bytes=5, busy_bytes=70)
    assert turns.next_move() is None
    turns.room = LoadRoom(100, fixed_bytes=5)
    assert turns.next_move() == LoadModel(B)


def test_one_that_cannot_have_its_room_now_keeps_nobody_else_out() -> None:
    turns = turns_with(100)
    turns.room = LoadRoom(100, busy_bytes=60)
    turns.ask(A, 1, 50)
    turns.ask(B, 2, 30)
    assert turns.next_move() == LoadModel(B)
    assert turns.waits_for_room(A, 1)


def test_pinned_models_stay_and_count() -> None:
    turns = turns_with(100, (A, 60), (B, 30))
    turns.pin(A)
    turns.ask(C, 1, 35)
    assert moves(turns) == [UnloadModel(B), LoadModel(C)]
    assert turns.never_fits(D, 40) is None
    assert turns.never_fits(D, 41) == 40
    assert turns.never_fits(A, 100) is None, "a model does not stand in its own way"
    turns.unpin(A)
    assert turns.never_fits(D, 100) is None
    assert turns.never_fits(D, 101) == 100


def test_only_leased_and_pinned_models_are_fixed_and_idle_ones_make_room() -> None:
    turns = turns_with(100, (A, 10), (B, 30), (C, 40))
    turns.pin(B)
    turns.ask(A, 1)
    assert turns.fixed_bytes(A, with_leased=False) == turns.fixed_bytes(A, with_leased=True) == 40
    turns.ask(C, 2)
    assert (turns.fixed_bytes(A, with_leased=False), turns.fixed_bytes(A, with_leased=True)) == (40, 80)
    assert turns.make_room(50) == [], "a leased model stays"
    turns.release(C)
    assert turns.make_room(80) == []
    assert turns.make_room(79) == [C]
    assert moves(turns) == [UnloadModel(C)]
    assert not turns.is_leaving(C)


def test_one_that_was_let_go_of_goes_when_its_leases_are_back_and_can_be_had_again() -> None:
    turns = turns_with(100, (A, 10))
    turns.pin(A)
    turns.ask(A, 1)
    turns.let_go(A)
    turns.ask(A, 2)
    assert turns.take_granted() == [1]
    assert turns.next_move() is None
    turns.release(A)
    assert turns.next_move() == UnloadModel(A)
    turns.unloaded(A)
    assert turns.next_move() == LoadModel(A)
    turns.loaded(A)
    assert turns.take_granted() == [2]
    turns.let_go(B)
    assert turns.residence(B) is Residence.ABSENT


def test_both_bounds_hold() -> None:
    turns = turns_with(100, (A, 1), (B, 1), max_loaded=2)
    turns.ask(C, 1, 1)
    assert moves(turns) == [UnloadModel(A), LoadModel(C)]


def test_a_model_may_turn_out_larger_than_was_told() -> None:
    turns = turns_with(100)
    turns.ask(A, 1, 10)
    assert turns.next_move() == LoadModel(A)
    turns.loaded(A, 90)
    turns.release(A)
    turns.ask(B, 2, 20)
    assert moves(turns) == [UnloadModel(A), LoadModel(B)]


@pytest.mark.parametrize(("hot", "room"), [(0, 25), (500, 25)])
def test_what_is_kept_for_later_is_no_use(hot: int, room: int) -> None:
    limits = MemoryLimits(1100, 900, 950, 1000)
    ledger = MemoryUse(other_bytes=75, state_bytes=300, growth_bytes=200, hot_bytes=hot, weight_bytes=400)
    found = LoadRoom.of(limits, ledger)
    assert found.available_bytes(400) == 525
    assert found.fits_now(400 + room)
    assert not found.fits_now(400 + room + 1)
    assert LoadRoom.of(None, ledger).fits_now(1 << 60)
