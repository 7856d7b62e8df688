"""Limits of one connection: the rest of a body, and places."""

import pytest

from interfaces.http.front.connection_limits import RESERVED_CONNECTIONS, MessageMeter, Place, Places, shared_address


def test_what_is_still_to_come_of_an_announced_body_is_counted_down() -> None:
    meter = MessageMeter()
    meter.begin()
    meter.header(b"Content-Length", b"5000")
    assert meter.rest_bytes == 0  # the head may go on
    meter.headers_complete()
    assert meter.rest_bytes == 5000
    meter.body(4096)
    assert meter.rest_bytes == 904
    meter.body(904)
    meter.complete()
    assert meter.rest_bytes == 0


def test_a_length_that_is_none_or_that_a_trailer_names_announces_nothing() -> None:
    meter = MessageMeter()
    meter.begin()
    meter.header(b"content-length", b"-7")
    meter.headers_complete()
    meter.header(b"content-length", b"9000")
    assert meter.rest_bytes == 0
    meter.complete()
    meter.begin()
    meter.headers_complete()
    assert meter.rest_bytes == 0


class Silent:
    """A connection that remembers whether it gave way."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.is_gone = False

    def give_way(self) -> None:
        self.is_gone = True


class TestPlaces:
    def test_the_connection_that_has_waited_longest_gives_way(self) -> None:
        places, (first, second, third, fourth) = Places(2), [Silent() for _ in range(4)]
        places.enter(first)
        places.enter(second)
        places.asked(first)
        places.answered(first)  # so that it waits since later than the second
        assert places.enter(third) is Place.WHOLE
        assert [one.is_gone for one in (first, second, third)] == [False, True, False]
        assert places.enter(fourth) is Place.WHOLE
        assert first.is_gone
        assert len(places) == 2

    def test_a_connection_that_is_being_answered_keeps_its_place(self) -> None:
        places, busy = Places(1), Silent()
        places.enter(busy)
        places.asked(busy)
        beyond = [Silent() for _ in range(RESERVED_CONNECTIONS + 1)]
        found = []
        for one in beyond:
            found.append(places.enter(one))
            places.asked(one)
        assert not busy.is_gone
        assert found == [Place.HEALTH_ONLY] * RESERVED_CONNECTIONS + [Place.NONE]
        for one in (busy, *beyond):
            places.leave(one)
            places.leave(one)
        assert len(places) == 0
        assert places.enter(Silent()) is Place.WHOLE

    def test_one_address_has_half_of_the_places(self) -> None:
        """Its own connections give way to it, and those of others do not."""
        places, other = Places(6), Silent("10.0.0.2")
        places.enter(other)
        own = [Silent("10.0.0.1") for _ in range(9)]
        for one in own:
            assert places.enter(one) is Place.WHOLE
        assert [one.is_gone for one in own] == [True] * 6 + [False] * 3
        assert not other.is_gone
        for one in own[6:]:
            places.asked(one)
        assert places.enter(Silent("10.0.0.1")) is Place.HEALTH_ONLY
        assert places.enter(Silent("10.0.0.3")) is Place.WHOLE

    def test_an_answer_to_a_connection_that_is_gone_brings_it_back_nowhere(self) -> None:
        places, one = Places(1), Silent()
        places.enter(one)
        places.asked(one)
        places.leave(one)
        places.answered(one)
        assert len(places) == 0
        assert places.enter(Silent()) is Place.WHOLE
        assert not one.is_gone

    @pytest.mark.parametrize(
        ("host", "shared"),
        [("127.0.0.1", None), ("127.3.2.1", None), ("::1", None), (None, None), ("10.0.0.1", "10.0.0.1")],
    )
    def test_loopback_has_no_address_of_its_own(self, host: str | None, shared: str | None) -> None:
        assert shared_address(host) == shared
