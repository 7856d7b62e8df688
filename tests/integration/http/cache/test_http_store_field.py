"""`store: false` in a request: its state stays in memory, whatever the dialect, and nothing of it reaches the store."""

from typing import Any

import pytest

from adapters.fake.options import HYBRID, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from tests.support.http.cache_requests import CHAT, COMPLETIONS, PROMPT, WARM
from tests.support.http.servers.fake_service import FakeService, fake_service

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 2},
    COMPLETIONS: {"prompt": [PROMPT, PROMPT[:300]], "n": 2, "max_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": PROMPT, "options": {"num_predict": 2}},
}
OPTIONS = FakeOptions(eos_every=0)


def stored(service: FakeService) -> int:
    stats = service.client.get("/v1/cache/stats").json()
    models = stats["store"]["models"]
    return sum(model["blocks"] + model["snapshots"] for model in models) + stats["queue"]["enqueued"]


def ask(service: FakeService, path: str, **fields: Any) -> None:
    response = service.client.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 200, response.text
    service.wait_until_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_false_keeps_it_out_of_the_store(path: str, stream: bool) -> None:
    with fake_service(FakeOptions(eos_every=0, layout=HYBRID), reuses=True, store=MemoryBlockStore()) as service:
        ask(service, path, store=False, stream=stream)
        assert stored(service) == 0
        assert service.client.get("/v1/cache/stats").json()["hot"]["blocks"] > 0
        ask(service, path, stream=stream)
        assert stored(service) > 0


@pytest.mark.parametrize("path", BODIES)
def test_what_is_neither_is_refused_by_name(path: str) -> None:
    with fake_service(OPTIONS, reuses=True, store=MemoryBlockStore()) as service:
        response = service.client.post(path, json={**BODIES[path], "store": "no"})
        assert response.status_code == 400
        assert "store" in response.text


def test_warming_without_storing_is_refused_by_name() -> None:
    with fake_service(OPTIONS, reuses=True, store=MemoryBlockStore()) as service:
        response = service.client.post(WARM, json={"prompt": PROMPT, "store": False})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "store")
        assert stored(service) == 0
