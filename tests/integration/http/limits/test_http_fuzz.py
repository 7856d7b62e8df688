"""Random bytes, headers, lengths and bodies on real connections: no 5xx but 503, well-formed requests are answered, and
nothing stays behind."""

import logging

import pytest

from adapters.fake.options import FakeOptions, reply_with
from interfaces.http.front.connection_limits import ConnectionLimits
from tests.support.http.fuzz_requests import CHECK_EVERY, Fuzzer
from tests.support.http.servers.fake_service import fake_service

REFUSED = {"400", "404", "415", "421", "431"}
QUICK = ConnectionLimits(header_timeout_s=1, body_timeout_s=1, write_timeout_s=5)


def test_whatever_is_thrown_at_it_well_formed_requests_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    """A little of what `tests.support.http.fuzz_requests` throws by the ten thousand."""
    with (
        fake_service(FakeOptions(reply=reply_with("ok")), connections=QUICK) as service,
        caplog.at_level(logging.ERROR),
    ):
        fuzzer = Fuzzer(service.base_url, seed=11)
        fuzzer.run(6 * CHECK_EVERY)
        for _ in range(8):  # a busy machine answers few in the time that a client of these takes
            if fuzzer.answers.keys() >= REFUSED:
                break
            fuzzer.run(CHECK_EVERY)
        assert fuzzer.answers.keys() >= REFUSED
        service.client.close()
        assert not service.events.of("FaultObserved")
        server = service.server._server
        assert server is not None
        service.wait_until(lambda: not server.server_state.connections, "every connection to be gone")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
