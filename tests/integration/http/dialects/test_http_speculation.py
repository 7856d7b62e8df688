"""Speculation over HTTP in every dialect: the request's fields, and the drafted tokens in the usage of the answer."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from adapters.fake.options import FakeOptions, reply_with
from tests.support.engines.drafters import CHEAP
from tests.support.http.servers.fake_service import FakeService, fake_service

REPEATING = "the cat sat on the mat. " * 6
"""An answer that lookup drafts from."""
NOVEL = "Sphinx of black quartz, judge my vow; pack five dozen jugs."
"""An answer that repeats nothing."""
ASKED = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"
MOST = 200


class Dialect(NamedTuple):
    """A request without its own fields, and the ways to the answer's text and to its drafted tokens."""

    path: str
    body: dict[str, Any]
    text: Callable[[Any], str]
    details: Callable[[Any], dict[str, int]]


DIALECTS = {
    "chat": Dialect(
        CHAT,
        {"messages": ASKED, "max_tokens": MOST},
        lambda body: body["choices"][0]["message"]["content"],
        lambda body: body["usage"]["completion_tokens_details"],
    ),
    "completions": Dialect(
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": MOST},
        lambda body: body["choices"][0]["text"],
        lambda body: body["usage"]["completion_tokens_details"],
    ),
    "responses": Dialect(
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": MOST},
        lambda body: body["output"][0]["content"][0]["text"],
        lambda body: body["usage"]["output_tokens_details"],
    ),
    "anthropic": Dialect(
        "/v1/messages",
        {"messages": ASKED, "max_tokens": MOST},
        lambda body: body["content"][0]["text"],
        lambda body: body["usage"]["output_tokens_details"],
    ),
    "ollama": Dialect(
        "/api/chat", {"messages": ASKED, "stream": False}, lambda body: body["message"]["content"], lambda body: body
    ),
}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    toys = {
        "fake-attention": FakeOptions(reply=reply_with(REPEATING), width_costs=CHEAP),
        "fake-hybrid": FakeOptions(reply=reply_with(NOVEL), width_costs=CHEAP, context_length=1_000),
    }
    with fake_service(by_model=toys) as running:
        yield running


def ask(service: FakeService, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = service.client.post(path, json=body)
    assert response.status_code == 200, response.text
    answered: dict[str, Any] = response.json()
    return answered


def drafted(details: dict[str, int]) -> tuple[int | None, int | None]:
    """The accepted and the rejected tokens."""
    return details.get("accepted_prediction_tokens"), details.get("rejected_prediction_tokens")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_drafted_tokens_are_reported_unless_the_request_declines_them(service: FakeService, dialect: Dialect) -> None:
    answer = ask(service, dialect.path, dialect.body)
    accepted, rejected = drafted(dialect.details(answer))
    assert dialect.text(answer) == REPEATING
    assert accepted is not None
    assert rejected is not None
    assert accepted > 20

    plain = ask(service, dialect.path, {**dialect.body, "speculation": False})
    assert dialect.text(plain) == REPEATING
    has_fields = dialect.path in (CHAT, "/v1/completions")  # by the dialect's schema
    assert drafted(dialect.details(plain)) == ((0, 0) if has_fields else (None, None))


def test_lists_of_models_show_what_is_drafted(service: FakeService) -> None:
    ask(service, CHAT, DIALECTS["chat"].body)
    managed = {one["standing"]["id"]: one["speculation"] for one in service.client.get("/models").json()["data"]}
    found = managed["fake-attention"]
    assert (found["mode"], found["own_drafter"], found["note"]) == ("auto", None, "")
    assert found["proposed"]["ngram"] >= found["accepted"]["ngram"] > 20
    assert found["tokens_per_step"] > 1.2
    assert managed["fake-windowed"] is None, "it is not loaded"
    listed = {one["id"]: one["cairn"] for one in service.client.get("/v1/models").json()["data"]}
    assert (listed["fake-attention"]["speculation"], listed["fake-attention"]["own_drafter"]) == ("auto", None)


@pytest.mark.parametrize(
    "content", [NOVEL, [{"type": "text", "text": NOVEL[:30]}, {"type": "text", "text": NOVEL[30:]}]]
)
def test_tokens_are_drafted_from_a_prediction(service: FakeService, content: Any) -> None:
    body = {"model": "fake-hybrid", "messages": ASKED}
    plain = ask(service, CHAT, body)
    predicted = ask(service, CHAT, {**body, "prediction": {"type": "content", "content": content}})
    declined = ask(service, CHAT, {**body, "prediction": {"content": content}, "speculation": False})

    details = DIALECTS["chat"].details
    assert drafted(details(plain))[0] == 0
    assert drafted(details(declined)) == (0, 0)
    assert (drafted(details(predicted))[0] or 0) > 20
    assert predicted["choices"] == plain["choices"] == declined["choices"]
    assert predicted["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("prediction", "code", "param"),
    [
        ({"content": "x" * 1_001}, "context_length_exceeded", "prediction"),
        (
            {"content": [{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}]},
            "invalid_request",
            "prediction.content[0].image_url",
        ),
        ({"content": "x", "type": "grammar"}, "invalid_request", "prediction.type"),
        ({}, "invalid_request", "prediction.content"),
    ],
)
def test_a_prediction_that_cannot_be_used_is_refused_by_name(
    service: FakeService, prediction: dict[str, Any], code: str, param: str
) -> None:
    body = {"model": "fake-hybrid", "messages": ASKED, "prediction": prediction}
    response = service.client.post(CHAT, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert response.json()["error"]["param"] == param
