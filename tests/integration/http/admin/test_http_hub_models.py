"""Models of the hub over HTTP: found, pulled with progress, cancelled, continued, removed, and for admins only."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from adapters.fake.engine import FakeModels
from adapters.huggingface.hub import HuggingFaceHub
from adapters.huggingface.repository import HuggingFaceRepository
from application.settings import ServerSettings
from domain.client import Client
from domain.models.residency import LoadRoom
from tests.support.http.servers.fake_service import SETTINGS, FakeService, fake_service, headers, keyed_service
from tests.support.mlx.fake_hub import fake_hub

FILES = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}", "model.safetensors": os.urandom(1 << 20)}
HUB = {"org/small": FILES, "org/speech": FILES, "org/half": {"config.json": FILES["config.json"]}}


class CachedModels(FakeModels):
    """The toy models, with those of the hub's cache."""

    def __init__(self, cache: Path) -> None:
        super().__init__()
        self._cached = HuggingFaceRepository(cache=cache)

    def list(self) -> Any:
        return sorted([*super().list(), *self._cached.list()], key=lambda one: one.id)


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@contextmanager
def served(cache: Path, gate: Event | None = None, **options: Any) -> Iterator[tuple[FakeService, list[Any]]]:
    """A server with a hub, and the files of which the rest was requested."""
    ranges: list[Any] = []
    models = {id: files for id, files in HUB.items() if "model.safetensors" in files}
    with (
        fake_hub({**HUB, **models}, ranges=ranges, gate=gate) as endpoint,
        fake_service(models=CachedModels(cache), hub=HuggingFaceHub(cache, endpoint), **options) as service,
    ):
        yield service, ranges


def pull(service: FakeService, model: str = "org/small", **more: object) -> Any:
    return service.client.post("/admin/api/pulls", json={"model": model, **more})


def newest(service: FakeService) -> Any:
    return service.client.get("/admin/api/pulls").json()["data"][0]


def wait_for(service: FakeService, state: str) -> Any:
    service.wait_until(lambda: newest(service)["state"] == state, f"a pull to be {state}")
    return newest(service)


def ids(service: FakeService) -> dict[str, str]:
    return {one["standing"]["id"]: one["origin"] for one in service.client.get("/models").json()["data"]}


def test_a_model_is_found_pulled_listed_and_deleted(tmp_path: Path) -> None:
    with served(tmp_path) as (service, _):
        (found,) = service.client.get("/admin/api/hub", params={"query": "org/s"}).json()["data"]
        assert (found["id"], found["bytes"], found["here"], found["problem"]) == ("org/small", 1 << 20, False, "")
        need = service.client.get("/admin/api/hub/model", params={"model": "org/small"}).json()
        total = sum(map(len, FILES.values()))
        assert (need["missing"], need["weights"], need["problem"]) == (total, 1 << 20, "")
        started = pull(service)
        assert (started.status_code, started.json()["state"]) == (200, "running"), started.text
        done = wait_for(service, "done")
        assert (done["done_bytes"], done["total_bytes"]) == (total, total)
        assert ids(service)["org/small"] == "hub"
        assert ids(service)["fake-hybrid"] == "local"
        removed = service.client.delete("/admin/api/models/org/small")
        assert (removed.status_code, removed.json()["bytes"] >= total) == (200, True), removed.text
        assert "org/small" not in ids(service)
        assert not list(tmp_path.rglob("*.safetensors"))
        assert service.client.delete("/admin/api/models/org/small").status_code == 404


def test_a_cancelled_pull_is_continued_and_nothing_waits_for_it(tmp_path: Path) -> None:
    gate = Event()
    with served(tmp_path, gate) as (service, ranges):
        first = pull(service).json()["id"]
        service.wait_until(lambda: newest(service)["done_bytes"] >= 1 << 19, "half of the model")
        assert service.client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 2}).status_code == 200
        second = pull(service, "org/speech")
        assert (second.status_code, "org/small is being downloaded" in second.text) == (400, True)
        busy = service.client.delete("/admin/api/models/org/small")
        assert (busy.status_code, "cancel that first" in busy.text) == (400, True)
        assert service.client.delete(f"/admin/api/pulls/{first}").json()["state"] == "cancelling"
        gate.set()
        wait_for(service, "cancelled")
        assert "org/small" not in ids(service)
        assert ranges == []
        assert pull(service).status_code == 200
        wait_for(service, "done")
        ((name, begun),) = ranges
        assert (name, begun >= 1 << 18) == ("model.safetensors", True)
        assert ids(service)["org/small"] == "hub"
        assert service.client.delete("/admin/api/pulls/99").status_code == 404


def test_a_pull_is_refused_before_it_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, room=lambda: LoadRoom(1 << 19)) as (service, _):
        for model, status, why in (
            ("nonsense", 400, "must be ORG/NAME"),
            ("org/never", 404, "the hub has no model org/never"),
            ("org/half", 503, "cannot be served, so it is not downloaded"),
            ("org/small", 400, "its weights take 1 MiB, and a server here may hold 512 KiB"),
        ):
            refused = pull(service, model)
            assert (refused.status_code, why in refused.text) == (status, True), refused.text
        assert service.client.get("/admin/api/pulls").json() == {"data": []}
        assert not list(tmp_path.rglob("*.safetensors"))
        (found,) = service.client.get("/admin/api/hub", params={"query": "small"}).json()["data"]
        assert "may hold 512 KiB" in found["memory"]
        free = shutil.disk_usage
        monkeypatch.setattr(shutil, "disk_usage", lambda path: free(path)._replace(free=1 << 20))
        full = pull(service, beyond_memory=True)
        assert (full.status_code, "are free in" in full.text) == (400, True)
        monkeypatch.setattr(shutil, "disk_usage", free)
        assert pull(service, beyond_memory=True).status_code == 200
        wait_for(service, "done")


def test_a_hub_that_is_not_reached_is_named(tmp_path: Path) -> None:
    with fake_service(hub=HuggingFaceHub(tmp_path, "http://127.0.0.1:9")) as service:
        for answer in (pull(service), service.client.get("/admin/api/hub", params={"query": "small"})):
            assert (answer.status_code, "cannot be reached" in answer.text) == (503, True), answer.text


def test_suggestions_are_those_that_fit(tmp_path: Path) -> None:
    with fake_service(hub=HuggingFaceHub(tmp_path), room=lambda: LoadRoom(12 << 30)) as service:
        found = service.client.get("/admin/api/hub").json()["data"]
        assert found
        assert all(one["bytes"] < 12 << 30 and one["context_length"] >= 32_768 and one["note"] for one in found)


def test_only_the_hubs_cache_is_deleted_from_and_no_loaded_model(tmp_path: Path) -> None:
    with served(tmp_path) as (service, _):
        assert pull(service).status_code == 200
        wait_for(service, "done")
        elsewhere = service.client.delete("/admin/api/models/fake-hybrid")
        assert (elsewhere.status_code, "not in the hub's cache" in elsewhere.text) == (400, True)
        assert list(tmp_path.rglob("*.safetensors"))


def test_models_are_changed_by_admins_only() -> None:
    with keyed_service(Client("ann"), Client("root", admin=True)) as service:
        for method, path in ROUTES:
            for name, status in (("ann", 403), ("root", 200)):
                answer = service.client.request(method, path, headers=headers(name), json=BODIES.get(path))
                assert (answer.status_code == 403) is (status == 403), (path, answer.text)


ROUTES = [
    ("GET", "/admin/api/hub"),
    ("GET", "/admin/api/hub/model?model=x"),
    ("GET", "/admin/api/pulls"),
    ("POST", "/admin/api/pulls"),
    ("DELETE", "/admin/api/pulls/1"),
    ("DELETE", "/admin/api/models/org/small"),
    ("POST", "/models/load"),
    ("POST", "/models/unload"),
    ("POST", "/models/pin"),
    ("POST", "/models/unpin"),
]
BODIES = {path: {"model": "fake-hybrid"} for method, path in ROUTES if method == "POST"}


def test_a_setting_switches_the_changes_off() -> None:
    with fake_service(settings=ServerSettings(port=0, admin=False)) as service:
        for method, path in ROUTES:
            answer = service.client.request(method, path, json=BODIES.get(path))
            assert (answer.status_code, "server.admin = false" in answer.text) == (403, True), (path, answer.text)
        assert service.client.get("/models").json()["may_change"] is False
    assert SETTINGS.admin
