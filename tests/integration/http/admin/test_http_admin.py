"""The admin's API on a whole server: what a page is told, which text of requests, and who may ask."""

from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.settings import CacheSettings, ServerSettings
from domain.client import Client
from tests.support.browser.admin_api import LONG, complete, read
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service, headers, keyed_service
from tests.support.stores.faulty_stores import HangingStore

SECRET = "The launch code is 0451." + "".join(f" Rule {number}." for number in range(100))
CHANGED = SECRET[:300] + "?" * 12
ROUTES = (
    ("GET", "/admin/api/overview"),
    ("GET", "/admin/api/requests"),
    ("GET", "/admin/api/requests/x"),
    ("POST", "/admin/api/requests/x/cancel"),
    ("GET", "/admin/api/settings"),
)


def read_with_tiers(service: FakeService) -> dict[str, Any]:
    """The overview, once the tiers could be read."""
    service.wait_until(lambda: read(service, "overview")["tiers"] is not None, "the tiers to be read")
    return read(service, "overview")


class TestOverview:
    def test_an_idle_server(self) -> None:
        with fake_service() as service:
            service.clock.advance(30)
            told = read(service, "overview")
            assert (told["object"], told["version"], told["uptime_s"]) == ("cairn.overview", "9.9", 30.0)
            assert told["now_unix_s"] == service.clock.unix_ns() / 1e9
            health, engine = told["health"], service.client.get("/health/engine").json()
            assert (health["status"], health["models"]) == ("not ready", [])
            steady = ("status", "outstanding", "stuck_in", "requests")  # the engine wakes up now and then
            assert [health["engine"][name] for name in steady] == [engine[name] for name in steady]
            assert told["requests"] == {"waiting": 0, "running": 0, "waiting_for": {}, "queue_limit": 64}
            assert told["figures"]["ttft"] == {"window_s": 300, "count": 0, "p50_s": None, "p90_s": None, "p99_s": None}
            assert {one["hit_rate"] for one in told["figures"]["reuse"]} == {None}

    def test_what_was_computed_and_reused_adds_up_to_the_usage_of_the_answers(self) -> None:
        with fake_service(FakeOptions(eos_every=0), reuses=True, store=MemoryBlockStore()) as service:
            usages = [
                service.client.post("/v1/completions", json={"prompt": LONG + end, "max_tokens": 3}).json()["usage"]
                for end in ("a", "b")
            ]
            told = read_with_tiers(service)
            figures, tiers = told["figures"], told["tiers"]
            tokens = {origin: sum(counts) for origin, counts in figures["history"]["tokens"].items()}
            num_prompt = sum(usage["prompt_tokens"] for usage in usages)
            num_cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
            assert num_cached > 0
            assert tokens["hot"] + tokens["store"] == num_cached
            assert tokens["computed"] == num_prompt - num_cached
            assert (tokens["output"], tokens["recomputed"]) == (6, 0)
            minute = figures["reuse"][0]
            assert (minute["window_s"], minute["lookups"], minute["prompt_tokens"]) == (60, 2, num_prompt)
            assert sum(minute["hit_rate"].values()) == pytest.approx(num_cached / num_prompt)
            shown = {name: value for name, value in minute.items() if name not in ("by_model", "window_s")}
            assert minute["by_model"] == [{"model": DEFAULT_MODEL, **shown}]
            assert (figures["ttft"]["count"], figures["itl"]["count"]) == (2, 4)
            assert len({len(found) for found in figures["history"]["tokens"].values()}) == 1
            assert told["health"]["models"] == [DEFAULT_MODEL]
            stats = service.client.get("/v1/cache/stats").json()
            assert tiers["hot"]["budget_bytes"] == stats["hot"]["budget_bytes"]
            assert tiers["store"]["quota_bytes"] == stats["store"]["quota_bytes"]
            assert (told["tiers_age_s"], told["event_failures"]) == (0.0, {})

    def test_reuse_saves_the_time_of_computing_less_that_of_restoring(self) -> None:
        services: list[FakeService] = []

        def takes_time(operation: str, *_: object) -> None:
            if services and operation in {"prefill", "restore"}:
                services[0].clock.advance({"prefill": 0.7, "restore": 0.125}[operation])

        with fake_service(FakeOptions(eos_every=0, hook=takes_time), reuses=True) as service:
            services.append(service)
            complete(service, LONG)
            assert read(service, "overview")["figures"]["saved"]["since_start_s"]["hot"] == 0.0
            complete(service, LONG)
            saved = read(service, "overview")["figures"]["saved"]
            seconds = {"live": 0.0, "hot": 3 * 0.7 - 0.125, "store": 0.0, "shared": 0.0}  # the first had three chunks
            assert saved["since_start_s"] == saved["last_hour_s"] == pytest.approx(seconds)
            assert saved["unpriced_tokens"] == 0
            service.clock.advance(3660)
            saved = read(service, "overview")["figures"]["saved"]
            assert saved["since_start_s"] == pytest.approx(seconds)
            assert set(saved["last_hour_s"].values()) == {0.0}

    def test_models_that_take_no_part_in_reuse_have_no_hit_rate(self) -> None:
        with fake_service() as service:  # nothing is reused: there is no hot tier
            complete(service, LONG)
            figures = read(service, "overview")["figures"]
            assert [one["hit_rate"] for one in figures["reuse"]] == [None, None, None]
            assert sum(figures["history"]["tokens"]["computed"]) == len(LONG)

    def test_a_store_that_hangs_does_not_keep_the_page_waiting(self) -> None:
        store = HangingStore()
        with fake_service(reuses=True, store=store) as service:
            before = read_with_tiers(service)["tiers"]
            store.hang(["usage"])
            service.clock.advance(8)
            told = read(service, "overview")
            assert (told["tiers"], told["tiers_age_s"]) == (before, 8.0)
            store.recover()
            service.wait_until(lambda: read(service, "overview")["tiers_age_s"] == 0.0, "the store to be read again")


class TestText:
    """Who sees text of prompts: only who might have it explained, and only of requests with the same key and salt."""

    def test_a_private_server_shows_both_sides_in_one_request_and_none_in_the_list(self) -> None:
        with fake_service(reuses=True) as service:
            complete(service, SECRET)
            id = complete(service, CHANGED)
            told = read(service, f"requests/{id}")
            assert told["shows_text"]
            divergence = told["explanation"]["divergence"]
            assert (divergence["position"], divergence["prompt"], divergence["stored"]) == (
                300,
                "?" * 12,
                SECRET[300:312],
            )
            assert "300" in told["explanation"]["sentence"]
            listed = read(service, "requests")["ended"][0]
            assert listed["explanation"]["divergence"] == {
                "position": 300,
                "before": "",
                "prompt": "",
                "stored": None,
            }
            assert not listed["shows_text"]

    def test_with_keys_there_is_none_by_default(self) -> None:
        with keyed_service(Client("root", admin=True), reuses=True) as service:
            asked = {"headers": headers("root")}
            complete(service, SECRET, **asked)
            id = complete(service, CHANGED, **asked)
            for path in (f"requests/{id}", "requests", "overview"):
                text = service.client.get(f"/admin/api/{path}", **asked).text
                assert "Rule" not in text
                assert "???" not in text
            assert read(service, f"requests/{id}", **asked)["explanation"]["divergence"]["position"] == 300

    def test_another_keys_and_another_salts_text_is_never_shown(self) -> None:
        clients = (Client("root", admin=True), Client("other", admin=True), Client("tenant", salt="s"))
        settings = CacheSettings(show_text="on")
        with keyed_service(*clients, cache_settings=settings, reuses=True) as service:
            ids = {}
            for name, salt in (("root", None), ("other", None), ("tenant", None), ("root", "mine")):
                fields = {"cache_salt": salt} if salt else {}
                complete(service, SECRET, headers=headers(name), **fields)
                ids[name, salt] = complete(service, CHANGED, headers=headers(name), **fields)
            for salt in (None, "mine"):
                asked = headers("root") | ({"x-cairn-cache-salt": salt} if salt else {})
                shown = {
                    asker: read(service, f"requests/{id}", headers=asked)["shows_text"] for asker, id in ids.items()
                }
                assert shown == {asker: asker == ("root", salt) for asker in ids}

    def test_what_was_stored_is_what_the_same_key_may_have_explained(self) -> None:
        clients = (Client("root", admin=True), Client("other"), Client("tenant", salt="s"))
        settings = CacheSettings(show_text="on")
        with keyed_service(*clients, cache_settings=settings, reuses=True) as service:
            asked, stored = headers("root"), dict[str, str | None]()
            for name in ("tenant", "other"):
                complete(service, f"{name}: {SECRET}", headers=headers(name))
                body = {"prompt": f"{name}: {CHANGED}"}
                explained = service.client.post("/v1/cache/explain", json=body, headers=asked).json()["prompts"][0]
                told = read(service, f"requests/{complete(service, **body, headers=asked)}", headers=asked)
                assert told["explanation"]["divergence"] == explained["divergence"]
                stored[name] = (explained["divergence"] or {}).get("stored")
            assert stored == {"tenant": None, "other": SECRET[300:312]}

    def test_text_goes_with_its_model(self) -> None:
        with fake_service(reuses=True) as service:
            complete(service, SECRET)
            id = complete(service, CHANGED)
            service.client.post("/models/unload", json={"model": DEFAULT_MODEL})
            service.wait_until(lambda: not service.engine.loaded, "the model to be unloaded")
            told = read(service, f"requests/{id}")
            assert (told["shows_text"], told["explanation"]["divergence"]["stored"]) == (False, None)


class TestWhoMayAsk:
    def test_no_page_of_another_origin_and_no_form(self) -> None:
        with fake_service() as service:
            for method, path in ROUTES:
                foreign = {"origin": "https://evil.example", "content-type": "application/json"}
                assert service.client.request(method, path, headers=foreign).status_code == 403
            form = {"content-type": "application/x-www-form-urlencoded"}
            assert service.client.post("/admin/api/requests/x/cancel", headers=form).status_code == 415


def test_settings_say_where_they_come_from_and_no_secret() -> None:
    secret = "s3cret-key"
    with fake_service(
        settings=ServerSettings(port=0, api_key=secret), cache_settings=CacheSettings(salt=secret)
    ) as service:
        response = service.client.get("/admin/api/settings", headers={"x-api-key": secret})
        assert secret not in response.text
        found = {one["path"]: one for one in response.json()["data"]}
        key = found["server.api_key"]
        assert (key["value"], key["origin"], key["source"]) == ("set", "code", "")
        assert "not started from a configuration file" in key["fixed"]
        assert (found["engine.queue"]["value"], found["engine.queue"]["origin"]) == (256, "default")
