"""Names that nobody serves and that stand for a model: the same in every dialect, and told back as asked."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.errors import InvalidRequest
from tests.support.http.servers.fake_service import FakeService, fake_service

ALIASES = ("claude-haiku-*=fake-hybrid", "claude-*", "fake-hybrid=fake-attention")
HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("Hé!")), settings=ServerSettings(port=0, aliases=ALIASES)) as one:
        yield one


def answered_by(service: FakeService) -> str:
    return str(service.events.events[-1].id and service.events.of("RequestQueued")[-1].model)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("claude-haiku-4-5-20251001", "fake-hybrid"),
        ("claude-opus-4-8", "fake-attention"),
        ("fake-hybrid", "fake-hybrid"),
    ],
)
def test_an_alias_is_answered_under_its_own_name(service: FakeService, path: str, asked: str, answers: str) -> None:
    response = service.client.post(path, json={**BODIES[path], "model": asked})
    assert (response.status_code, response.json()["model"]) == (200, asked), response.text
    assert answered_by(service) == answers
    streamed = service.client.post(path, json={**BODIES[path], "model": asked, "stream": True})
    assert f'"model":"{asked}"' in streamed.text.replace('": "', '":"')
    assert answered_by(service) == answers


@pytest.mark.parametrize("path", BODIES)
def test_default_is_a_name_of_the_default_model_on_every_route(service: FakeService, path: str) -> None:
    response = service.client.post(path, json={**BODIES[path], "model": "default"})
    assert (response.status_code, response.json()["model"]) == (200, "default"), response.text
    assert answered_by(service) == "fake-attention"


def test_default_reaches_the_default_model_for_vectors_scores_and_tokens(service: FakeService) -> None:
    for path, body in {
        "/v1/rerank": {"query": "a", "documents": ["b"]},
        "/v1/embeddings": {"input": "a"},
        "/tokenize": {"prompt": "a"},
        "/v1/cache/explain": {"prompt": "a"},
    }.items():
        named = service.client.post(path, json={**body, "model": "default"})
        assert named.status_code == service.client.post(path, json=body).status_code != 404, named.text


def test_prompts_are_counted_explained_and_warmed_for_the_model_that_answers(service: FakeService) -> None:
    body = {"messages": HELLO, "model": "claude-haiku-4"}
    count = service.client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    explained = service.client.post("/v1/cache/explain", json=body).json()
    assert (explained["model"], explained["prompts"][0]["prompt_tokens"]) == ("fake-hybrid", count)


def test_prompts_are_made_of_what_the_model_that_answers_makes_of_them(service: FakeService) -> None:
    bodies = {"/tokenize": {"prompt": "hi"}, "/detokenize": {"tokens": [104]}, "/apply-template": {"messages": HELLO}}
    for path, body in bodies.items():
        told = service.client.post(path, json={**body, "model": "claude-haiku-4"})
        assert told.status_code == 200, told.text
        assert told.json() == service.client.post(path, json={**body, "model": "fake-hybrid"}).json()
        assert service.client.post(path, json={**body, "model": "gpt-9"}).status_code == 404


def test_what_no_alias_fits_is_refused_and_the_list_shows_models_only(service: FakeService) -> None:
    for path, body in BODIES.items():
        assert service.client.post(path, json={**body, "model": "gpt-9"}).status_code == 404
    listed = service.client.get("/v1/models").json()["data"]
    assert not any("claude" in model["id"] for model in listed)
    assert service.client.get("/v1/models/claude-opus-4-8").status_code == 404


def test_by_default_claudes_names_stand_for_the_default_model_and_no_others() -> None:
    assert ServerSettings().model_of == {"claude-*": ""}
    assert ServerSettings(aliases=()).model_of == {}
    with pytest.raises(InvalidRequest, match="aliases"):
        ServerSettings(aliases=("=fake-attention",))
