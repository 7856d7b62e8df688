"""How much time a body that arrives is given."""

from interfaces.http.message_meter import MessageMeter


def test_a_body_has_a_second_more_for_each_kibibyte_that_came_since() -> None:
    meter = MessageMeter()
    meter.begin()
    meter.headers_complete()
    meter.body(3 * 1024)
    meter.body(1024)
    assert meter.spend_body(30.0) == 4.0
    assert meter.spend_body(30.0) == 0.0
    meter.body(512)
    assert meter.spend_body(30.0) == 0.5


def test_what_came_fast_buys_no_silence() -> None:
    meter = MessageMeter()
    meter.begin()
    meter.headers_complete()
    meter.body(16 << 20)
    assert meter.spend_body(30.0) == 30.0
    assert meter.spend_body(30.0) == 0.0


def test_a_request_does_not_spend_what_came_of_the_one_before() -> None:
    meter = MessageMeter()
    meter.begin()
    meter.headers_complete()
    meter.body(1024)
    meter.complete()
    meter.begin()
    assert meter.spend_body(30.0) == 0.0


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
