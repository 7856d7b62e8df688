"""Keys of several clients: which of them asks, and what it may do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.client import Client, KeyRing
from interfaces.http.incoming.request_context import LARGE_BYTES
from tests.support.http.servers.fake_service import (
    DEFAULT_MODEL,
    KEY,
    SETTINGS,
    FakeService,
    fake_service,
    headers,
    keyed_service,
)

OPTIONS = FakeOptions(reply=reply_with("ok"))
CLIENTS = (
    Client("alice"),
    Client("bob", models=frozenset({"fake-hybrid"})),
    Client("root", admin=True),
    Client("locked", models=frozenset()),
)
ADMIN_ROUTES = (("POST", "/v1/cache/clear"), ("GET", "/v1/cache/stats"), ("GET", "/v1/cache/stats/"))
PROMPT = {"prompt": "x"}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with keyed_service(*CLIENTS, options=OPTIONS) as running:
        yield running


def ask(service: FakeService, name: str, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return service.client.post(path, json={**PROMPT, **body}, headers=headers(name))


class TestWhoAsks:
    @pytest.mark.parametrize("name", ["alice", "root", "default"])
    def test_each_by_its_key_in_either_header(self, service: FakeService, name: str) -> None:
        assert ask(service, name).status_code == 200
        for sent in ({"x-api-key": f"{name}{KEY}"}, {"authorization": f"bearer   {name}{KEY}"}):
            assert service.client.post("/v1/completions", json=PROMPT, headers=sent).status_code == 200
        queued: Any = service.events.of("RequestQueued")[-1]
        assert queued.client == name

    @pytest.mark.parametrize(
        "sent",
        [
            [("authorization", f"Bearer alice{KEY}"), ("authorization", f"Bearer root{KEY}")],
            [("authorization", f"Bearer alice{KEY}"), ("x-api-key", f"root{KEY}")],
            [("x-api-key", f"alice{KEY}, root{KEY}")],
            [("x-api-key", f"alice{KEY}")] + [("x-api-key", "junk")] * 4,
            [("x-api-key", "a" * 30_000)],
            [("authorization", f"Bearer alice{KEY}" + "a" * 30_000)],
            [("cookie", f"x-api-key=alice{KEY}")],
            [("proxy-authorization", f"Bearer alice{KEY}")],
            [],
            [("authorization", "Bearer")],
            [("authorization", f"Bearer alice {KEY}")],
            [("authorization", f"Basic alice{KEY}")],
            [("authorization", f"alice{KEY}")],
            [("x-api-key", "")],
            [("x-api-key", f"alice{KEY}"[:-1])],
            [("x-api-key", b"\xff\xfe")],
        ],
        ids=["twice", "both", "joined", "many", "long", "longer", "cookie", "proxy", "none", "scheme", "words", "basic",
             "bare", "empty", "shorter", "bytes"],
    )  # fmt: skip
    def test_nobody_is_not_somebody(self, service: FakeService, sent: Any) -> None:
        given = httpx.Headers(sent)
        posted = httpx.Headers([*given.raw, (b"content-type", b"application/json")])
        for response in (
            service.client.request("POST", "/v1/completions", content=b"not even json", headers=posted),
            service.client.request("GET", "/v1/models", headers=given),
            service.client.request("GET", "/schema/openapi.json", headers=given),
        ):
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            error = response.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert KEY not in response.text

    def test_health_checks_need_no_key(self, service: FakeService) -> None:
        assert service.client.get("/health").json() == {"status": "ok"}
        assert service.client.get("/health/live").status_code == 200
        assert service.client.get("/health/live/../../v1/models").status_code in (401, 404)

    def test_junk_beside_a_key_or_the_key_twice_is_still_that_key(self, service: FakeService) -> None:
        for other in ("junk", f"alice{KEY}"):
            sent = {**headers("alice"), "x-api-key": other}
            assert service.client.get("/v1/models", headers=sent).status_code == 200

    @pytest.mark.parametrize("name", ["api_key", "key", "x-api-key", "authorization", "access_token"])
    def test_no_key_is_taken_from_a_query(self, service: FakeService, name: str) -> None:
        for value in (f"root{KEY}", f"Bearer root{KEY}"):
            assert service.client.get("/v1/models", params={name: value}).status_code == 401


class TestModels:
    def test_only_those_of_the_key_are_listed(self, service: FakeService) -> None:
        def listed(name: str) -> set[str]:
            return {model["id"] for model in service.client.get("/v1/models", headers=headers(name)).json()["data"]}

        assert listed("bob") == {"fake-hybrid"}
        assert listed("locked") == set()
        assert listed("alice") == listed("default") >= {"fake-hybrid", DEFAULT_MODEL}

    @pytest.mark.parametrize("model", [DEFAULT_MODEL, None, "none-such", "FAKE-HYBRID", "fake-hybrid/", ""], ids=repr)
    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/cache/explain", "/v1/cache/warm"])
    def test_no_other_can_be_used_or_distinguished_from_one_that_is_not_there(
        self, service: FakeService, path: str, model: str | None
    ) -> None:
        response = ask(service, "bob", path, model=model)
        assert response.status_code == 403
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("not_allowed", "model")
        assert error["message"] == f"the key 'bob' may not use the model '{model or DEFAULT_MODEL}'"
        assert service.events.of("HttpRefused")[-1].reason == "not_allowed"

    @pytest.mark.parametrize(
        ("path", "body", "told"),
        [
            ("/v1/chat/completions", {}, {"error": {"code": "not_allowed"}}),
            ("/v1/messages", {"max_tokens": 2}, {"type": "error", "error": {"type": "permission_error"}}),
            ("/v1/messages/count_tokens", {}, {"type": "error", "error": {"type": "permission_error"}}),
            ("/v1/responses", {"input": "x", "messages": None}, {"error": {"code": "not_allowed"}}),
            ("/v1/cache/explain", {}, {"error": {"code": "not_allowed"}}),
        ],
        ids=["chat", "messages", "count", "responses", "explain"],
    )
    def test_every_route_that_takes_a_prompt_looks(self, path: str, body: dict[str, Any], told: dict[str, Any]) -> None:
        client = Client("two", models=frozenset({"fake-hybrid"}), requests_per_minute=2)
        content = {"messages": [{"role": "user", "content": "x"}]} | body
        with keyed_service(client, options=OPTIONS) as service:

            def send(model: str) -> httpx.Response:
                return service.client.post(path, json=content | {"model": model}, headers=headers("two"))

            response = send(DEFAULT_MODEL)
            assert response.status_code == 403, response.text
            answer = response.json()
            assert answer.get("type") == told.get("type")
            assert told["error"].items() <= answer["error"].items()
            assert send("fake-hybrid").status_code == 200
            response = send("fake-hybrid")
            assert (response.status_code, response.headers["retry-after"]) == (429, "30")
            assert response.json()["error"]["type"] == "rate_limit_error"

    def test_what_is_served_is_named_as_far_as_the_key_may_use_it(self) -> None:
        client = Client("gone", models=frozenset({"gone-model", "fake-hybrid"}))
        with keyed_service(client, options=OPTIONS) as service:
            for path in ("/v1/completions", "/v1/cache/explain", "/v1/cache/warm"):
                told = ask(service, "gone", path, model="gone-model")
                assert told.status_code == 404
                message = told.json()["error"]["message"]
                assert message == "no model 'gone-model' here; served here: fake-hybrid"
            told = service.client.get("/v1/models/gone-model", headers=headers("gone"))
            assert told.json()["error"]["message"].endswith("; served here: fake-hybrid")


class TestAdmins:
    @pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
    def test_what_is_everybody_s_needs_an_admin(self, service: FakeService, method: str, path: str) -> None:
        def status(name: str | None) -> int:
            sent = headers(name) if name else {}
            body = {"json": {}} if method == "POST" else {}
            return service.client.request(method, path, headers=sent, **body).status_code

        assert [status(name) for name in (None, "alice", "root", "default")] == [401, 403, 200, 200]

    def test_a_refusal_comes_before_the_body(self, service: FakeService) -> None:
        sent = {**headers("alice"), "content-type": "application/json"}
        for body in (b"not json", b"not json" * LARGE_BYTES):
            response = service.client.post("/v1/cache/clear", content=body, headers=sent)
            assert response.status_code == 403
            assert response.json()["error"]["message"].startswith("the key 'alice' may not do this: use a key")

    def test_health_is_reported_in_full_to_admins(self, service: FakeService) -> None:
        ask(service, "alice")
        for sent, is_told in (({}, False), (headers("alice"), False), (headers("x"), False), (headers("root"), True)):
            response = service.client.get("/health/ready", headers=sent)
            assert response.status_code == 200
            assert (response.json()["models"] is not None) is is_told


def test_without_any_key_everything_is_open_as_ever() -> None:
    with fake_service(OPTIONS) as service:
        assert service.client.post("/v1/completions", json=PROMPT).status_code == 200
        assert service.client.get("/v1/cache/stats").status_code == 200
        sent = {"authorization": "Bearer unused", "x-api-key": "other"}
        response = service.client.get("/v1/models", headers=sent)
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]
        assert service.client.get("/health/ready").json()["models"] is not None


@pytest.mark.parametrize("keys", [None, KeyRing([])], ids=["none", "empty"])
def test_a_key_file_without_keys_opens_nothing(keys: KeyRing | None) -> None:
    settings = replace(SETTINGS, api_key=None)
    with fake_service(OPTIONS, settings=settings, keys=keys) as service:
        assert service.client.get("/v1/models").status_code == 401
        assert service.client.get("/v1/models", headers=headers("default")).status_code == 401
        assert service.client.get("/health").status_code == 200


def test_a_key_file_is_enough_for_other_machines() -> None:
    assert ServerSettings(host="0.0.0.0", key_file="keys.toml").needs_key
