"""The slots of connections."""

import pytest

from interfaces.http.front.connection_limits import (
    RESERVED_CONNECTIONS,
    ConnectionSlots,
    Slot,
    shared_address,
)


class Silent:
    """A connection that remembers whether it gave way."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.is_gone = False

    def evict(self) -> None:
        self.is_gone = True


class TestConnectionSlots:
    def test_the_connection_that_has_waited_longest_gives_way(self) -> None:
        slots, (first, second, third, fourth) = ConnectionSlots(2), [Silent() for _ in range(4)]
        slots.enter(first)
        slots.enter(second)
        slots.request_arrived(first)
        slots.request_answered(first)  # so that it waits since later than the second
        assert slots.enter(third) is Slot.ALL_REQUESTS
        assert [one.is_gone for one in (first, second, third)] == [False, True, False]
        assert slots.enter(fourth) is Slot.ALL_REQUESTS
        assert first.is_gone
        assert len(slots) == 2

    def test_a_connection_that_is_being_answered_keeps_its_place(self) -> None:
        slots, busy = ConnectionSlots(1), Silent()
        slots.enter(busy)
        slots.request_arrived(busy)
        beyond = [Silent() for _ in range(RESERVED_CONNECTIONS + 1)]
        found = []
        for one in beyond:
            found.append(slots.enter(one))
            slots.request_arrived(one)
        assert not busy.is_gone
        assert found == [Slot.HEALTH_ONLY] * RESERVED_CONNECTIONS + [Slot.NONE]
        for one in (busy, *beyond):
            slots.leave(one)
            slots.leave(one)
        assert len(slots) == 0
        assert slots.enter(Silent()) is Slot.ALL_REQUESTS

    def test_one_address_has_half_of_the_places(self) -> None:
        """Its own connections give way to it, and those of others do not."""
        slots, other = ConnectionSlots(6), Silent("10.0.0.2")
        slots.enter(other)
        own = [Silent("10.0.0.1") for _ in range(9)]
        for one in own:
            assert slots.enter(one) is Slot.ALL_REQUESTS
        assert [one.is_gone for one in own] == [True] * 6 + [False] * 3
        assert not other.is_gone
        for one in own[6:]:
            slots.request_arrived(one)
        assert slots.enter(Silent("10.0.0.1")) is Slot.HEALTH_ONLY
        assert slots.enter(Silent("10.0.0.3")) is Slot.ALL_REQUESTS

    def test_an_answer_to_a_connection_that_is_gone_brings_it_back_nowhere(self) -> None:
        slots, one = ConnectionSlots(1), Silent()
        slots.enter(one)
        slots.request_arrived(one)
        slots.leave(one)
        slots.request_answered(one)
        assert len(slots) == 0
        assert slots.enter(Silent()) is Slot.ALL_REQUESTS
        assert not one.is_gone

    @pytest.mark.parametrize(
        ("host", "shared"),
        [
            ("127.0.0.1", None),
            ("127.3.2.1", None),
            ("::1", None),
            ("::ffff:127.0.0.1", None),
            (None, None),
            ("10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ],
    )
    def test_loopback_has_no_address_of_its_own(self, host: str | None, shared: str | None) -> None:
        assert shared_address(host) == shared
