"""What a client sends comes back, and goes into logs and spans, only short and on one line; prompts not at all."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from adapters.system.event_log import EventLog
from application.services.request_timelines import RequestTimelines
from tests.support.http.servers.fake_service import FakeService, fake_service

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LONG = "x" * 2**21
HELLO = {"role": "user", "content": "hi"}
INJECTED = "a\n2026-11-21 10:00:00.000 INFO cairn: all is well\x1b[2J"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("ok"))) as running:
        yield running


@pytest.mark.parametrize(
    "fields",
    [
        {"model": LONG},
        {"messages": [{"role": LONG, "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
        {"logit_bias": {LONG: 1}},
        {"tools": [{"type": LONG, "function": {"name": "f"}}]},
        {"response_format": {"type": LONG}},
        {"stream": LONG},
        {"stop": LONG},
        {"tool_choice": LONG},
        {LONG: 1, "temperature": "x"},
    ],
    ids=lambda fields: next(iter(fields))[:20],
)
def test_no_answer_repeats_two_megabytes(service: FakeService, fields: dict[str, Any]) -> None:
    response = service.client.post(CHAT, json={"messages": [HELLO], **fields})
    assert 400 <= response.status_code < 500
    assert len(response.content) < 5_000
    assert all(len(value) < 500 for value in response.headers.values())


def test_paths_are_cut(service: FakeService) -> None:
    for path in ("/" + "y" * 4_000, "/v1/models/" + "y" * 4_000):
        response = service.client.get(path)
        assert response.status_code == 404
        assert len(response.json()["error"]["message"]) < 600


def test_refused_names_are_short_in_events_and_logs(service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(RequestTimelines())
    with caplog.at_level(logging.INFO, "cairn"):
        for name in (LONG, INJECTED):
            before = len(service.events.events)
            service.client.post(COMPLETIONS, json={"prompt": "x", "model": name})
            service.client.get("/version", headers={"host": name[:20_000].encode("unicode_escape")})
            for event in service.events.events[before:]:
                log.emit(event)
        log.close()
    assert len(caplog.records) >= 3
    for record in caplog.records:
        assert len(record.getMessage()) < 1_000
        assert record.getMessage().isprintable()
    assert all(len(event.model) <= 200 for event in service.events.of("RequestRefused"))
