"""What fits, but not now, waits in the queue: visible as such, and not for ever."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.scheduling.queue_waits import QueueWaits
from tests.support.engines.guards import ClosedGuard
from tests.support.http.clients import RawClient
from tests.support.http.servers.fake_service import FakeService, fake_service

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "x"},
    "/v1/messages": CHAT,
    "/api/generate": {"prompt": "x", "model": "fake-attention", "stream": False},
}


@contextmanager
def waiting(path: str, keepalive_s: float = 600, **fields: Any) -> Iterator[tuple[FakeService, ClosedGuard, RawClient]]:
    """A request that waits for memory."""
    guard, settings = ClosedGuard(), ServerSettings(port=0, keepalive_s=keepalive_s)
    options = FakeOptions(reply=reply_with("ok"))
    with fake_service(options, settings=settings, guard=guard, waits=QueueWaits(60)) as service:
        client = RawClient(service.base_url, path, BODIES[path] | fields)
        service.wait_until(lambda: bool(service.loop.status().waiting_for), "the request to wait")
        yield service, guard, client
        client.leave()
        guard.is_open = True
        service.loop.wake()


def wait_too_long(service: FakeService) -> None:
    service.clock.advance(61)
    service.loop.wake()


@pytest.mark.parametrize("path", BODIES)
def test_after_a_stated_time_it_fails_and_says_when_to_come_back(path: str) -> None:
    with waiting(path) as (service, guard, client):
        wait_too_long(service)
        answer = client.read_until(b"try again later")
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"http/1.1 503 ")
        assert b"\r\nretry-after: 10" in head
        guard.is_open = True
        assert service.client.post(path, json=BODIES[path]).status_code == 200
        assert [event.error_code for event in service.events.of("RequestEnded")] == ["memory_busy", None]


def test_it_is_seen_what_is_waited_for() -> None:
    with waiting("/v1/chat/completions") as (service, guard, client):
        ready = service.client.get("/health/ready").json()
        assert (ready["status"], ready["waiting"], ready["waiting_for"]) == ("ready", 1, {"memory": 1})
        assert [event.reason for event in service.events.of("RequestWaits")] == ["memory"]
        guard.is_open = True
        service.loop.wake()
        client.read_until(b'"finish_reason":"stop"')
        assert service.client.get("/health/ready").json()["waiting_for"] == {}


def test_a_stream_that_has_begun_ends_with_an_error_that_clients_repeat() -> None:
    with waiting("/v1/responses", keepalive_s=0.05, stream=True) as (service, _, client):
        client.read_until(b"response.in_progress")
        wait_too_long(service)
        events = client.read_until(b"event: response.failed").decode()
        failed = client.read_until(b"try again in 10s").decode()
        assert "rate_limit_exceeded" in failed
        assert "200 OK" in events
