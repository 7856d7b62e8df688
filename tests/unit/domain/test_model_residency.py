"""Whose turn it is: leases for those who waited, room in order of arrival, and nobody kept out."""

import pytest

from domain.ids import ModelId
from domain.models.residency import LoadModel, ModelResidency, UnloadModel

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")


def turns_with(*loaded: ModelId, max_loaded: int) -> ModelResidency:
    """Models that are loaded and leased once each."""
    turns = ModelResidency(max_loaded)
    for number, id in enumerate(loaded):
        turns.request(id, 1000 + number)
        assert turns.next_move() == LoadModel(id)
        turns.loaded(id)
        assert turns.take_granted() == [1000 + number]
    return turns


def test_whoever_waited_has_a_lease_before_anything_else_can_happen() -> None:
    turns = ModelResidency(1)
    turns.request(A, 1)
    turns.request(B, 2)
    assert turns.next_move() == LoadModel(A)
    turns.loaded(A)
    assert turns.next_move() is None
    assert turns.take_granted() == [1]
    turns.release(A)
    assert turns.next_move() == UnloadModel(A)
    turns.unloaded(A)
    assert turns.next_move() == LoadModel(B)


def test_a_model_that_makes_way_gives_no_new_leases_and_comes_next() -> None:
    turns = turns_with(A, max_loaded=1)
    turns.request(B, 1)
    turns.request(A, 2)
    assert turns.take_granted() == []
    turns.release(A)
    assert turns.next_move() == UnloadModel(A)
    turns.unloaded(A)
    assert turns.next_move() == LoadModel(B)
    turns.loaded(B)
    assert turns.take_granted() == [1]
    turns.request(B, 3)
    assert turns.take_granted() == [], "now it is B that makes way"
    turns.release(B)
    assert turns.next_move() == UnloadModel(B)


def test_a_pinned_model_makes_no_way_and_another_goes_for_it() -> None:
    turns = turns_with(A, B, max_loaded=2)
    turns.release(A)
    turns.release(B)
    turns.pin(A)
    turns.request(C, 1)
    assert turns.next_move() == UnloadModel(B), "although A is idle for longer"
    turns.unloaded(B)
    assert turns.next_move() == LoadModel(C)


def test_who_needs_the_room_of_a_pinned_model_waits_until_it_is_unpinned() -> None:
    turns = turns_with(A, max_loaded=1)
    turns.release(A)
    turns.pin(A)
    turns.request(B, 1)
    assert turns.next_move() is None
    turns.request(A, 2)
    assert turns.take_granted() == [2], "it makes way for nobody, so it is there"
    turns.release(A)
    turns.unpin(A)
    assert turns.next_move() == UnloadModel(A)


def test_only_one_model_makes_way() -> None:
    turns = turns_with(A, B, max_loaded=2)
    turns.request(C, 1)
    turns.request(A, 2)
    turns.request(B, 3)
    assert turns.take_granted() == [3]


def test_another_model_that_becomes_idle_first_is_unloaded_instead() -> None:
    turns = turns_with(A, B, max_loaded=2)
    turns.request(C, 1)
    turns.request(A, 2)
    turns.release(B)
    assert turns.next_move() == UnloadModel(B)
    assert turns.take_granted() == [2]


def test_whoever_leaves_the_line_lets_the_others_in() -> None:
    turns = turns_with(A, max_loaded=1)
    turns.request(B, 1)
    turns.request(A, 2)
    turns.withdraw(B, 1)
    assert turns.take_granted() == [2]
    assert turns.next_move() is None


def test_whoever_is_next_once_a_model_is_unloaded_does_not_wait_for_room() -> None:
    turns = turns_with(A, max_loaded=1)
    turns.request(B, 1)
    turns.request(C, 2)
    assert turns.waits_for_room(B, 1)
    turns.release(A)
    assert turns.next_move() == UnloadModel(A)
    assert not turns.waits_for_room(B, 1)
    assert turns.waits_for_room(C, 2)
    turns.unloaded(A)
    assert turns.next_move() == LoadModel(B)
    assert not turns.waits_for_room(B, 1)


def test_a_failed_load_is_told_to_all_who_waited_for_it() -> None:
    turns = ModelResidency(1)
    turns.request(A, 1)
    assert turns.next_move() == LoadModel(A)
    turns.request(A, 2)
    turns.request(B, 3)
    assert turns.failed(A) == (1, 2)
    assert turns.next_move() == LoadModel(B)


def test_sharing_a_lease_waits_for_nobody_and_needs_one() -> None:
    turns = turns_with(A, max_loaded=1)
    turns.request(B, 1)
    assert turns.add_lease(A)
    turns.release(A)
    assert turns.next_move() is None
    turns.release(A)
    assert not turns.add_lease(A)
    with pytest.raises(ValueError, match="there is no lease"):
        turns.release(A)
