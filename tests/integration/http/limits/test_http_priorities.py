"""Who goes first: what a request asks for, what its key allows, and what the answer says of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from domain.client import Client
from domain.priority import Priority
from tests.support.http.servers.fake_service import FakeService, headers, keyed_service

MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
CHAT, COMPLETIONS, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: MESSAGES,
    COMPLETIONS: {"prompt": "x"},
    RESPONSES: {"input": "x"},
    ANTHROPIC: MESSAGES,
}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    clients = (Client("alice"), Client("nightly", priority=Priority.BATCH))
    with keyed_service(*clients, options=FakeOptions(reply=reply_with("ok"))) as running:
        yield running


def asked(service: FakeService, path: str, name: str = "alice", **fields: Any) -> tuple[Priority, Any]:
    """The priority it was submitted with, and its answer."""
    answer = service.client.post(path, json=BODIES[path] | fields, headers=headers(name))
    assert answer.status_code == 200, answer.text
    return service.memory.submissions[-1].priority, answer.json() if not fields.get("stream") else answer.text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("tier", [None, "priority", "one of next year", "flex"])
def test_flex_waits_and_whatever_else_goes_first(service: FakeService, path: str, tier: str | None) -> None:
    priority, answer = asked(service, path, service_tier=tier)
    assert priority is (Priority.BATCH if tier == "flex" else Priority.INTERACTIVE)
    shown = answer.get("service_tier")
    assert shown in ("default", None) if tier != "flex" else shown == (None if path == COMPLETIONS else "flex")


def test_anthropics_tiers(service: FakeService) -> None:
    for sent, priority, told in (
        (None, Priority.INTERACTIVE, "standard"),
        ("auto", Priority.INTERACTIVE, "standard"),
        ("standard_only", Priority.INTERACTIVE, "standard"),
        ("batch", Priority.BATCH, "batch"),
    ):
        found, answer = asked(service, ANTHROPIC, service_tier=sent)
        assert (found, answer["usage"]["service_tier"]) == (priority, told)


@pytest.mark.parametrize("path", BODIES)
def test_a_key_for_batches_cannot_ask_for_more(service: FakeService, path: str) -> None:
    for fields in ({}, {"service_tier": "priority"}):
        priority, answer = asked(service, path, "nightly", **fields)
        assert priority is Priority.BATCH
        told = answer["usage"].get("service_tier") if path == ANTHROPIC else answer.get("service_tier")
        assert told == {ANTHROPIC: "batch", COMPLETIONS: None}.get(path, "flex")


def test_streams_tell_it_in_every_chunk(service: FakeService) -> None:
    _, text = asked(service, CHAT, service_tier="flex", stream=True)
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert {chunk["service_tier"] for chunk in chunks} == {"flex"}
    _, text = asked(service, CHAT, stream=True)
    assert "service_tier" not in text
