"""The admin's API of a server on the toy engine: asked, and waited for."""

from collections.abc import Callable
from typing import Any

import httpx

from tests.support.http.servers.fake_service import FakeService

LONG = "x" * 700
"""A prompt of several blocks."""


def read(service: FakeService, path: str, status: int = 200, **asked: Any) -> dict[str, Any]:
    response = service.client.get(f"/admin/api/{path}", **asked)
    assert response.status_code == status, response.text
    told: dict[str, Any] = response.json()
    return told


def complete(service: FakeService, prompt: str, **fields: Any) -> str:
    """The request's id."""
    asked: dict[str, Any] = {"headers": fields.pop("headers", None)}
    body = {"prompt": prompt, "max_tokens": 3, **fields}
    response = service.client.post("/v1/completions", json=body, **asked)
    assert response.status_code == 200, response.text
    id: str = response.json()["id"]
    return id


def cancel(service: FakeService, id: str, **asked: Any) -> httpx.Response:
    return service.client.post(f"/admin/api/requests/{id}/cancel", json={}, **asked)


def only_open(service: FakeService, is_there: Callable[[dict[str, Any]], bool] = lambda _told: True) -> dict[str, Any]:
    """The one open request, once it is as wanted."""

    def found() -> bool:
        told = read(service, "requests")["open"]
        return len(told) == 1 and is_there(told[0])

    service.wait_until(found, "a request to be seen")
    told: dict[str, Any] = read(service, "requests")["open"][0]
    return told
