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
