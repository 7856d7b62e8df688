"""A rewriting rule over HTTP: off by default, and told in the header, the explanation and the request log's event."""

from typing import Any

from application.events import RequestQueued
from application.settings import CacheSettings
from tests.support.fake_service import FakeService, fake_service
from tests.unit.test_prompt_rewrite import STATUS

RULE = "move:claude-code-git-status"
ON = CacheSettings(rewrites=(RULE,))


def conversation(status: str, *turns: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    said = [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)]
    return {"max_tokens": 4, "system": f"{'Be brief. ' * 60}\n\n{status}", "messages": said}


def send(service: FakeService, body: dict[str, Any]) -> str:
    response = service.client.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    return response.headers["x-cairn-cache"]


def computed(header: str) -> int:
    return int(dict(part.split("=", 1) for part in header.split("; "))["computed"])


def test_what_changed_at_a_new_start_costs_the_last_turn_only() -> None:
    long, changed = "x" * 1000, STATUS + "\n96d two"
    costs: dict[bool, int] = {}
    for is_on in (False, True):
        with fake_service(reuses=True, cache_settings=ON if is_on else CacheSettings()) as service:
            first = send(service, conversation(STATUS, long, "ok", "go on"))
            resumed = send(service, conversation(changed, long, "ok", "go on"))
            assert [f"rewrite={RULE}" in header for header in (first, resumed)] == [is_on, is_on]
            queued = service.events.of("RequestQueued")
            assert all(isinstance(one, RequestQueued) and one.rewrites == ((RULE,) if is_on else ()) for one in queued)
            costs[is_on] = computed(resumed)
    assert costs[True] < len(changed) < 1000 < costs[False]


def test_an_explanation_names_the_rule() -> None:
    with fake_service(reuses=True, cache_settings=ON) as service:
        body = {"messages": [{"role": "system", "content": STATUS}, {"role": "user", "content": "hi"}]}
        told = service.client.post("/v1/cache/explain", json=body).json()["prompts"][0]
        assert told["rewrites"] == [RULE]
        plain = service.client.post("/v1/cache/explain", json={"messages": body["messages"][1:]}).json()["prompts"][0]
        assert plain["rewrites"] == []
