"""The API key guards everything but the health checks."""

from collections.abc import Iterator

import pytest

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from tests.support.fake_service import FakeService, fake_service

KEY = "s3cret-kéy"
JSON = {"content-type": "application/json"}
BODY = {"prompt": "x"}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("ok")), settings=ServerSettings(port=0, api_key=KEY)) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer x y"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY}x".encode()},
        {"authorization": f"Basic {KEY}".encode()},
        {"authorization": KEY.encode()},
        {"x-api-key": ""},
        {"x-api-key": KEY[:-1].encode()},
        {"x-api-key": b"\xff\xfe"},
    ],
)
def test_without_the_key_nothing_is_served(service: FakeService, headers: dict[str, str]) -> None:
    for response in (
        service.client.post("/v1/completions", json=BODY, headers=headers),
        service.client.post("/v1/chat/completions", content=b"not even json", headers={**JSON, **headers}),
        service.client.get("/v1/models", headers=headers),
        service.client.get("/schema/openapi.json", headers=headers),
    ):
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert KEY not in response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": f"Bearer {KEY}".encode()},
        {"authorization": f"bearer   {KEY}".encode()},
        {"x-api-key": KEY.encode()},
        {"x-api-key": KEY.encode(), "authorization": b"Bearer something-else"},
    ],
)
def test_with_the_key_everything_is(service: FakeService, headers: dict[str, bytes]) -> None:
    assert service.client.post("/v1/completions", json=BODY, headers=headers).json()["choices"][0]["text"] == "ok"
    assert service.client.get("/v1/models", headers=headers).status_code == 200


def test_health_checks_need_no_key(service: FakeService) -> None:
    assert service.client.get("/health").json() == {"status": "ok"}
    assert service.client.get("/health/live").status_code == 200
    assert service.client.get("/health/ready").status_code in (200, 503)
    assert service.client.get("/health/live/../../v1/models").status_code in (401, 404)
