"""The ledger's verb: a share for those who wait, what room there is for those who are admitted, and one room a step."""

from application.services.memory_ledger import Lease, MemoryLedger, Purpose, Refused

MIB = 1 << 20


def opened(room_bytes: int | None, ahead_bytes: int | None = None, *, makes_room: bool = True) -> MemoryLedger:
    ledger = MemoryLedger()
    ledger.open(room_bytes, ahead_bytes, makes_room=makes_room)
    return ledger


def granted(found: Lease | Refused) -> Lease:
    assert isinstance(found, Lease)
    return found


def refused(found: Lease | Refused) -> Refused:
    assert isinstance(found, Refused)
    return found


def test_fetching_ahead_stops_at_its_share() -> None:
    ledger = opened(10_000 * MIB, 300 * MIB)
    first = granted(ledger.reserve(Purpose.AHEAD, 128 * MIB))
    granted(ledger.reserve(Purpose.AHEAD, 128 * MIB))
    assert refused(ledger.reserve(Purpose.AHEAD, 128 * MIB)).room_bytes == 44 * MIB
    assert ledger.held_bytes(Purpose.AHEAD) == 256 * MIB
    first.admit()
    granted(ledger.reserve(Purpose.AHEAD, 128 * MIB))
    assert ledger.held_bytes(Purpose.FETCHES) == 128 * MIB


def test_what_is_pinned_counts_in_the_share_and_not_twice_in_what_is_held() -> None:
    ledger = opened(None, 100)
    refused(ledger.reserve(Purpose.AHEAD, 10, 101))
    lease = granted(ledger.reserve(Purpose.AHEAD, 10, 90))
    assert ledger.held_bytes(Purpose.AHEAD) == 10
    lease.resize(4)
    assert ledger.held_bytes(Purpose.AHEAD) == 4
    lease.end()
    lease.end()
    assert ledger.held_bytes(*Purpose) == 0


def test_a_fetch_waits_for_room_and_is_refused_for_good_when_none_will_come() -> None:
    ledger = opened(50)
    assert refused(ledger.reserve(Purpose.FETCHES, 60)) == Refused(50)
    assert ledger.wanted_bytes == 60
    ledger.open(50)
    assert not refused(ledger.reserve(Purpose.FETCHES, 60)).is_final
    ledger.open(50, makes_room=False)
    assert refused(ledger.reserve(Purpose.FETCHES, 60)).is_final


def test_what_is_wanted_may_make_room_before_the_next_step_and_until_then_a_refusal_is_not_final() -> None:
    ledger = opened(None)
    ledger.open(50, makes_room=False)
    assert not any(refused(ledger.reserve(Purpose.FETCHES, num_bytes)).is_final for num_bytes in (70, 60, 65))
    assert ledger.wanted_bytes == 60
    ledger.open(60, makes_room=False)
    granted(ledger.reserve(Purpose.FETCHES, 60))


def test_what_began_leaves_less_room_for_all_and_one_on_its_way_is_worth_waiting_for() -> None:
    ledger = opened(100)
    lease = granted(ledger.reserve(Purpose.FETCHES, 60))
    refused(ledger.reserve(Purpose.AHEAD, 60))
    refused(ledger.reserve(Purpose.FETCHES, 60))
    ledger.open(40, makes_room=False)
    assert not refused(ledger.reserve(Purpose.FETCHES, 60)).is_final
    lease.end()
    ledger.open(40, makes_room=False)
    assert refused(ledger.reserve(Purpose.FETCHES, 60)).is_final


def test_what_is_promised_is_not_there_for_what_is_held_at_once() -> None:
    for purpose in (Purpose.SEQUENCES, Purpose.LIVE):
        ledger = opened(100)
        ledger.promise(50)
        assert refused(ledger.reserve(purpose, 51)).room_bytes == 50
        granted(ledger.reserve(purpose, 30))
        refused(ledger.reserve(purpose, 21))
        granted(ledger.reserve(Purpose.FETCHES, 70))
        assert ledger.held_bytes(purpose) == 0, "counted by what it is from the next step on"
        ledger.open(100)
        granted(ledger.reserve(purpose, 100))


def test_what_was_fetched_ahead_is_recalled_while_there_is_no_share() -> None:
    ledger = opened(None, 100)
    lease = granted(ledger.reserve(Purpose.AHEAD, 50))
    assert not lease.is_recalled
    ledger.open(None, 0)
    assert lease.is_recalled
    lease.admit()
    assert not lease.is_recalled
