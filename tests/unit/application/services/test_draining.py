"""A drain is undone, unless the server stops."""

from application.services.draining import Draining


def test_a_drain_ends_when_it_is_asked_to() -> None:
    draining = Draining()
    draining.begin()
    assert draining.is_on
    draining.end()
    assert not draining.is_on


def test_the_drain_of_a_server_that_stops_does_not_end() -> None:
    draining = Draining()
    draining.begin(is_final=True)
    draining.begin()
    draining.end()
    assert draining.is_on
