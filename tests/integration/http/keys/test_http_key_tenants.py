"""Tenants: a key's salt keeps its prefixes apart from all others', whatever is asked and however."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.settings import CacheSettings
from domain.client import Client
from interfaces.http.answering.documented import CACHE_HEADER
from tests.support.http.clients import CHAT, COMPLETIONS, EDITED, EXPLAIN, PROMPT, WARM
from tests.support.http.servers.fake_service import FakeService, headers, keyed_service

CLIENTS = (
    Client("alice", salt="a"),
    Client("bob", salt="b"),
    Client("team-1", salt="team"),
    Client("team-2", salt="team", admin=True),
    Client("plain"),
    Client("other"),
)


@pytest.fixture
def service() -> Iterator[FakeService]:
    cache = CacheSettings(show_text="on")
    options = FakeOptions(eos_every=0)
    with keyed_service(
        *CLIENTS, options=options, reuses=True, store=MemoryBlockStore(), cache_settings=cache
    ) as running:
        yield running


def post(service: FakeService, name: str, path: str, **body: Any) -> Any:
    response = service.client.post(path, json={"prompt": PROMPT, **body}, headers=headers(name))
    assert response.status_code == 200, response.text
    return response


def reused(service: FakeService, name: str, **body: Any) -> int:
    header = post(service, name, COMPLETIONS, max_tokens=1, **body).headers[CACHE_HEADER]
    return int(header.split(";")[0].removeprefix("reused="))


def explained(service: FakeService, name: str, **body: Any) -> dict[str, Any]:
    (told,) = post(service, name, EXPLAIN, **body).json()["prompts"]
    return told


def test_each_salt_is_a_tenant_of_its_own(service: FakeService) -> None:
    for name in ("alice", "bob", "team-1", "plain"):
        assert reused(service, name) == 0
    for name in ("alice", "bob", "team-1", "team-2", "plain", "other", "default"):
        assert reused(service, name) > 0


def test_a_request_s_own_salt_divides_a_tenant_further(service: FakeService) -> None:
    assert [reused(service, "alice", cache_salt=salt) for salt in ("", "x", "x", "")][0::3] == [0, 699]
    assert reused(service, "bob", cache_salt="x") == 0
    assert reused(service, "plain", cache_salt="x") == 0


@pytest.mark.parametrize("stranger", ["bob", "plain", "default"])
def test_no_salt_that_is_sent_reaches_another_tenant(service: FakeService, stranger: str) -> None:
    assert reused(service, "alice") == 0
    for salt in ("a", '["a", ""]', Client("alice", salt="a").tenant(""), Client("b", salt="b").tenant("a")):
        assert reused(service, stranger, cache_salt=salt) == 0


def test_explanations_neither_count_nor_quote_what_others_have(service: FakeService) -> None:
    reused(service, "alice")
    told = explained(service, "bob", prompt=EDITED)
    assert (told["known_tokens"], told["stopped_at"], told["divergence"]) == (0, 0, None)
    told = explained(service, "alice", prompt=EDITED)
    assert told["divergence"]["stored"].startswith(PROMPT[600:606])


def test_what_is_warmed_is_the_tenant_s(service: FakeService) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "prompt": None}
    (told,) = post(service, "alice", WARM, **body).json()["prompts"]
    assert told["stored_tokens"] == told["prompt_tokens"] - 1
    for name, expected in (("bob", False), ("alice", True)):
        answer = post(service, name, CHAT, max_tokens=1, **body).json()
        assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) is expected


def test_an_admin_s_salt_clears_the_tenant_of_its_own_key(service: FakeService) -> None:
    for name in ("alice", "team-1", "plain"):
        reused(service, name)
        reused(service, name, cache_salt="x")
    response = service.client.post("/v1/cache/clear", json={"salt": ""}, headers=headers("team-2"))
    assert response.status_code == 200
    assert response.json()["hot_records"] > 0
    assert reused(service, "team-1") == 0
    assert reused(service, "team-1", cache_salt="x") > 0
    assert reused(service, "alice") > 0
    assert reused(service, "plain") > 0
    service.client.post("/v1/cache/clear", json={"salt": "x"}, headers=headers("default"))
    assert reused(service, "plain", cache_salt="x") == 0
    assert reused(service, "alice", cache_salt="x") > 0
    service.client.post("/v1/cache/clear", json={}, headers=headers("default"))
    assert reused(service, "alice") == 0
