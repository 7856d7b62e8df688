"""`model.context_length` is the most that is served, for whatever asks."""

from collections.abc import Iterator

import pytest

from adapters.fake.options import FakeOptions
from application.settings import ModelSettings
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service

CAP, OWN = 100, 32_768


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    settings = ModelSettings(default=DEFAULT_MODEL, context_length=CAP)
    with fake_service(FakeOptions(context_length=OWN, eos_every=0), model_settings=settings, reuses=True) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/cache/explain", "/v1/cache/warm"])
def test_a_prompt_beyond_the_cap_is_refused(service: FakeService, path: str) -> None:
    answer = service.client.post(path, json={"prompt": "x" * CAP})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert str(CAP) in answer.json()["error"]["message"]
    assert service.client.post(path, json={"prompt": "x" * (CAP - 1), "max_tokens": 1}).status_code == 200


def test_the_model_list_tells_the_cap(service: FakeService) -> None:
    service.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1})
    (listed,) = [one for one in service.client.get("/v1/models").json()["data"] if one["id"] == DEFAULT_MODEL]
    assert listed["cairn"]["context_length"] == CAP
