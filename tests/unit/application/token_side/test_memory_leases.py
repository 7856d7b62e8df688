"""Reservations: a share for queued sequences, the room of a step for admitted ones, and one room for all of a step."""

from application.services.memory_leases import Lease, MemoryLeases, Purpose, Refused

MIB = 1 << 20


def opened(room_bytes: int | None, ahead_bytes: int | None = None, *, makes_room: bool = True) -> MemoryLeases:
    leases = MemoryLeases()
    leases.open(room_bytes, ahead_bytes, makes_room=makes_room)
    return leases


def granted(found: Lease | Refused) -> Lease:
    assert isinstance(found, Lease)
    return found


def refused(found: Lease | Refused) -> Refused:
    assert isinstance(found, Refused)
    return found


def test_fetching_ahead_stops_at_its_share() -> None:
    leases = opened(10_000 * MIB, 300 * MIB)
    first = granted(leases.reserve(Purpose.AHEAD, 128 * MIB))
    granted(leases.reserve(Purpose.AHEAD, 128 * MIB))
    assert refused(leases.reserve(Purpose.AHEAD, 128 * MIB)).room_bytes == 44 * MIB
    assert leases.held_bytes(Purpose.AHEAD) == 256 * MIB
    first.admit()
    granted(leases.reserve(Purpose.AHEAD, 128 * MIB))
    assert leases.held_bytes(Purpose.FETCHES) == 128 * MIB


def test_what_is_pinned_counts_in_the_share_and_not_twice_in_what_is_held() -> None:
    leases = opened(None, 100)
    refused(leases.reserve(Purpose.AHEAD, 10, 101))
    lease = granted(leases.reserve(Purpose.AHEAD, 10, 90))
    assert leases.held_bytes(Purpose.AHEAD) == 10
    lease.resize(4)
    assert leases.held_bytes(Purpose.AHEAD) == 4
    lease.end()
    lease.end()
    assert leases.held_bytes(*Purpose) == 0


def test_a_fetch_waits_for_room_and_is_refused_for_good_when_none_will_come() -> None:
    leases = opened(50)
    assert refused(leases.reserve(Purpose.FETCHES, 60)) == Refused(50)
    assert leases.wanted_bytes == 60
    leases.open(50)
    assert not refused(leases.reserve(Purpose.FETCHES, 60)).is_final
    leases.open(50, makes_room=False)
    assert refused(leases.reserve(Purpose.FETCHES, 60)).is_final


def test_what_is_wanted_may_make_room_before_the_next_step_and_until_then_a_refusal_is_not_final() -> None:
    leases = opened(None)
    leases.open(50, makes_room=False)
    assert not any(refused(leases.reserve(Purpose.FETCHES, num_bytes)).is_final for num_bytes in (70, 60, 65))
    assert leases.wanted_bytes == 60
    leases.open(60, makes_room=False)
    granted(leases.reserve(Purpose.FETCHES, 60))


def test_what_began_leaves_less_room_for_all_and_one_on_its_way_is_worth_waiting_for() -> None:
    leases = opened(100)
    lease = granted(leases.reserve(Purpose.FETCHES, 60))
    refused(leases.reserve(Purpose.AHEAD, 60))
    refused(leases.reserve(Purpose.FETCHES, 60))
    leases.open(40, makes_room=False)
    assert not refused(leases.reserve(Purpose.FETCHES, 60)).is_final
    lease.end()
    leases.open(40, makes_room=False)
    assert refused(leases.reserve(Purpose.FETCHES, 60)).is_final


def test_what_is_promised_is_not_there_for_what_is_held_at_once() -> None:
    leases = opened(100)
    leases.promise(50)
    assert refused(leases.reserve(Purpose.LIVE, 51)).room_bytes == 50
    granted(leases.reserve(Purpose.LIVE, 30))
    refused(leases.reserve(Purpose.LIVE, 21))
    granted(leases.reserve(Purpose.FETCHES, 70))
    assert leases.held_bytes(Purpose.LIVE) == 0, "counted by what it is from the next step on"
    leases.open(100)
    granted(leases.reserve(Purpose.LIVE, 100))


def test_what_was_fetched_ahead_is_recalled_while_there_is_no_share() -> None:
    leases = opened(None, 100)
    lease = granted(leases.reserve(Purpose.AHEAD, 50))
    assert not lease.is_recalled
    leases.open(None, 0)
    assert lease.is_recalled
    lease.admit()
    assert not lease.is_recalled
