"""Fetches are charged before they begin: a share for who waits, what room there is for who is admitted."""

from application.services.prefix.flights import Flights, Leave
from application.services.prefix.step_room import StepRoom
from domain.ids import SequenceId

MIB = 1 << 20
A, B, C, D = map(SequenceId, range(4))


def test_look_ahead_stops_at_its_share() -> None:
    flights = Flights()
    flights.ahead_bytes = 300 * MIB
    flights.room.open(10_000 * MIB)
    told = [flights.begin(id, 128 * MIB, 128 * MIB, is_ahead=True) for id in (A, B, C, D)]
    assert told == [Leave.GO, Leave.GO, Leave.WAIT, Leave.WAIT]
    assert flights.held_bytes == 256 * MIB
    flights.admitted(A)
    assert flights.begin(C, 128 * MIB, 128 * MIB, is_ahead=True) is Leave.GO


def test_what_is_pinned_counts_in_the_share_and_not_twice_in_what_is_held() -> None:
    flights = Flights()
    flights.ahead_bytes = 100
    assert flights.begin(A, 10, 101, is_ahead=True) is Leave.WAIT
    assert flights.begin(B, 10, 90, is_ahead=True) is Leave.GO
    assert flights.held_bytes == 10
    flights.landed(B, 4)
    assert flights.held_bytes == 4
    flights.end(B)
    assert flights.held_bytes == 0


def test_who_is_admitted_waits_for_room_and_is_computed_when_none_will_come() -> None:
    flights = Flights()
    flights.room.open(50)
    assert flights.begin(A, 60, 60, is_ahead=False) is Leave.WAIT
    assert flights.wanted_bytes == 60
    flights.room.open(50)
    assert flights.begin(A, 60, 60, is_ahead=False) is Leave.WAIT
    flights.makes_room = False
    assert flights.begin(A, 60, 60, is_ahead=False) is Leave.NEVER


def test_what_is_wanted_may_make_room_before_the_next_step_and_until_then_a_refusal_is_no_last_word() -> None:
    flights = Flights()
    flights.makes_room = False
    flights.room.open(50)
    assert [flights.begin(A, 60, 60, is_ahead=False) for _ in range(3)] == [Leave.WAIT] * 3
    flights.room.open(60)
    assert flights.begin(A, 60, 60, is_ahead=False) is Leave.GO


def test_what_began_leaves_less_room_for_all_and_one_on_its_way_is_worth_waiting_for() -> None:
    flights = Flights()
    flights.makes_room = False
    flights.room.open(100)
    assert flights.begin(A, 60, 60, is_ahead=False) is Leave.GO
    assert flights.begin(C, 60, 60, is_ahead=True) is Leave.WAIT
    assert [flights.begin(B, 60, 60, is_ahead=False) for _ in range(2)] == [Leave.WAIT] * 2
    flights.end(A)
    flights.room.open(40)
    assert flights.begin(B, 60, 60, is_ahead=False) is Leave.NEVER


def test_what_is_promised_to_who_is_admitted_is_not_there_for_what_is_held_at_once() -> None:
    room = StepRoom()
    room.open(100)
    room.promise(50)
    assert (room.has(100), room.has_at_once(51), room.has_at_once(50)) == (True, False, True)
    room.take(60)
    assert (room.has(41), room.has(40), room.has_at_once(0)) == (False, True, False)
    room.open(100)
    assert room.has_at_once(100)


def test_what_was_fetched_ahead_yields_when_there_is_no_share() -> None:
    flights = Flights()
    flights.ahead_bytes = 100
    flights.begin(A, 50, 50, is_ahead=True)
    flights.ahead_bytes = 0
    assert flights.must_yield(A)
    flights.admitted(A)
    assert not flights.must_yield(A)
