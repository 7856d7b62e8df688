"""A model's own salt: its prefixes are apart from those of other names of the same weights, and can be cleared."""

from adapters.fake.options import FakeOptions
from application.settings import ModelSettings, ModelTable
from tests.support.http.servers.fake_service import FakeService, fake_service

PLAIN, TWIN, APART = "fake-attention", "fake-hybrid", "fake-windowed"
"""Names of equal weights: the toy engine gives all the same."""

PROMPT = "x" * 2_000


def reused(service: FakeService, model: str, **fields: str) -> int:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 1, **fields}
    answer = service.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    service.wait_until_idle()
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_model_s_salt_keeps_its_prefixes_apart_and_they_can_be_cleared() -> None:
    settings, tables = ModelSettings(default=PLAIN), {APART: ModelTable(salt="own")}
    with fake_service(FakeOptions(), reuses=True, model_settings=settings, tables=tables, max_loaded=3) as service:
        for salt in ({}, {"cache_salt": "alice"}):
            assert reused(service, PLAIN, **salt) == 0
            assert reused(service, TWIN, **salt) > 0
            assert reused(service, APART, **salt) == 0
            assert reused(service, APART, **salt) > 0
        cleared = service.client.post("/v1/cache/clear", json={"salt": "alice"}).json()
        assert cleared["hot_records"] > 0
        for name in (PLAIN, APART):
            assert reused(service, name) > 0
            assert reused(service, name, cache_salt="alice") == 0
