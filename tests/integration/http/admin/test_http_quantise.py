"""Quantised copies over HTTP: planned, made while requests are answered, served, removed, and for admins only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.client import Client
from domain.errors import ModelLoadFailed
from domain.models.residency import LoadRoom
from tests.support.engines.fake_quantiser import FakeQuantiser, ModelsWithCopies
from tests.support.http.servers.fake_service import FakeService, fake_service, headers, keyed_service, wait_until
from tests.support.http.servers.live_service import live_service
from tests.support.patience import PATIENCE_S

PATH = "/admin/api/quantise"
COPY = "fake-attention-4bit"


@contextmanager
def served(folder: Path, quantiser: FakeQuantiser | None = None, **options: Any) -> Iterator[FakeService]:
    quantiser = quantiser or FakeQuantiser()
    with fake_service(models=ModelsWithCopies(folder), quantises=(quantiser, str(folder)), **options) as service:
        yield service


def post(service: FakeService, path: str = PATH, **fields: object) -> Any:
    return service.client.post(path, json={"model": "fake-attention", **fields})


def jobs(service: FakeService) -> Any:
    return service.client.get(PATH).json()["data"]


def copies(service: FakeService) -> Any:
    return service.client.get(f"{PATH}/copies").json()


def wait_for(service: FakeService, state: str) -> Any:
    service.wait_until(lambda: jobs(service)[0]["state"] == state, f"a job to be {state}")
    return jobs(service)[0]


def test_a_copy_is_planned_made_listed_served_and_removed(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        planned = post(service, f"{PATH}/plan", bits=6).json()
        assert planned == {
            "name": "fake-attention-6bit",
            "bytes": 750 + 20 + 64,
            "bits_per_weight": 6.099,
            "forms": {"6 bits": 1000, "plain": 10},
            "step_bytes": 1 << 20,
            "free_bytes": None,
            "shards": 1,
            "copied": ["head.weight"],
            "num_copied": 1,
            "copied_bytes": 64,
        }
        assert jobs(service) == []
        started = post(service)
        assert (started.status_code, started.json()["state"]) == (200, "running"), started.text
        done = wait_for(service, "done")
        quality = {"kl": 0.0123, "agreement": 0.954, "perplexity": 12.5, "source_perplexity": 12.1, "tokens": 512}
        assert (done["name"], done["bytes"], done["quality"]) == (COPY, 500 + 20 + 64, quality)
        listed = copies(service)
        (copy,) = listed["data"]
        assert (copy["name"], copy["state"], copy["quality"]) == (COPY, "whole", quality)
        sources = {one["id"]: one["problem"] for one in listed["sources"]}
        assert (sources["fake-attention"], "is quantised already" in sources[COPY]) == ("", True)
        again = post(service, model=COPY)
        assert (again.status_code, again.json()["error"]["param"]) == (400, "model")

        assert service.client.post("/models/load", json={"model": COPY}).json()["state"] == "loaded"
        chat = {"model": COPY, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        assert service.client.post("/v1/chat/completions", json=chat).json()["model"] == COPY
        held = service.client.delete(f"{PATH}/copies/{COPY}")
        assert (held.status_code, "is loaded: unload it first" in held.text) == (400, True)
        service.client.post("/models/unload", json={"model": COPY})
        service.wait_until(lambda: service.client.delete(f"{PATH}/copies/{COPY}").status_code == 200, "the removal")
        assert (copies(service)["data"], list(tmp_path.iterdir())) == ([], [])


def test_requests_are_answered_while_a_job_runs_and_one_runs_at_a_time(tmp_path: Path) -> None:
    gate = Event()
    with served(tmp_path, FakeQuantiser(gate=gate)) as service:
        first = post(service, recipe="", rules={"*.up": {"bits": 8}}, size=None, check=False).json()
        service.wait_until(lambda: jobs(service)[0]["done"] > 0, "half of the copy")
        now = jobs(service)[0]
        assert (now["phase"], now["done"], now["total"]) == ("writing", 2048, 4096)
        for stream in (False, True):
            asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "stream": stream}
            assert service.client.post("/v1/chat/completions", json=asked).status_code == 200
        (copy,) = copies(service)["data"]
        assert (copy["name"], copy["state"]) == ("fake-attention-4bit-rules", "running")
        for refused in (
            post(service),
            post(service, f"{PATH}/plan"),
            service.client.delete(f"{PATH}/copies/{copy['name']}"),
        ):
            assert (refused.status_code, "is being made" in refused.text) == (400, True)
        assert service.client.delete(f"{PATH}/{first['id']}").json()["state"] == "cancelling"
        gate.set()
        wait_for(service, "cancelled")
        assert copies(service)["data"][0]["state"] == "partial"
        continued = service.client.post(PATH, json=now["order"])
        assert continued.status_code == 200, continued.text
        assert wait_for(service, "done")["note"] == ""
        assert [one["state"] for one in copies(service)["data"]] == ["whole"]
        assert service.client.delete(f"{PATH}/99").status_code == 404


REFUSED: list[tuple[dict[str, Any], str | None]] = [
    ({"model": "none"}, "model"),
    ({"bits": 7}, "bits"),
    ({"bits": "4"}, "bits"),
    ({"bits": True}, "bits"),
    ({"mode": "int4"}, "mode"),
    ({"mode": "mxfp4", "bits": 8}, "bits"),
    ({"group": 48}, "group"),
    ({"recipe": "/etc/passwd"}, "recipe"),
    ({"recipe": "mixed_4_6", "rules": {"*": {"bits": 8}}}, "recipe"),
    ({"rules": {"*": {"bits": 9}}}, "rules"),
    ({"rules": {"*": "8"}}, "rules"),
    ({"rules": {f"*.{number}": False for number in range(257)}}, "rules"),
    ({"size": "many"}, "size"),
    ({"size": "50%"}, "size"),
    ({"size": 0}, "size"),
    ({"size": -1}, "size"),
    ({"size": 1 << 60}, "size"),
    ({"size": "9" * 5000}, "size"),
    ({"size": "6GB", "recipe": "mixed_4_6"}, "size"),
    ({"name": "../up"}, "name"),
    ({"name": ".dot"}, "name"),
    ({"name": "a/b"}, "name"),
    ({"name": "fake-hybrid"}, "name"),
    ({"out": "x"}, None),
    ({"bits": 2}, "bits"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_refusals_name_the_field_before_any_work(tmp_path: Path, fields: dict[str, Any], param: str | None) -> None:
    quantiser = FakeQuantiser()
    with served(tmp_path, quantiser) as service:
        for path in (PATH, f"{PATH}/plan"):
            answer = post(service, path, **fields)
            assert answer.status_code == (404 if fields.get("model") else 400), answer.text
            if param is not None:
                assert answer.json()["error"]["param"] == param, answer.text
        assert (quantiser.orders, jobs(service), list(tmp_path.iterdir())) == ([], [], [])


def test_what_has_no_room_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    quantiser = FakeQuantiser(free_bytes=10)
    with served(tmp_path, quantiser, room=lambda: LoadRoom(1 << 20)) as service:
        full = post(service)
        assert (full.status_code, full.json()["error"]["param"]) == (400, "name")
        quantiser.free_bytes = None
        short = post(service)
        assert (short.status_code, "of memory are needed" in short.text) == (400, True)
        quantiser.plan_error = ModelLoadFailed("/models/one is quantised already (gptq)")
        unread = post(service)
        assert (unread.status_code, unread.json()["error"]["param"]) == (503, "model")
        assert jobs(service) == []


@pytest.mark.parametrize("name", ["..", "../..", ".hidden", "%2e%2e", "/etc", "link", "fake-attention", "plain"])
def test_only_copies_are_removed(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "models"
    for path in (outside, folder / "plain", folder / ".hidden"):
        path.mkdir(parents=True)
        (path / "config.json").write_text("{}")
    (folder / "link").symlink_to(outside)
    with served(folder) as service:
        answer = service.client.delete(f"{PATH}/copies/{quote(name, safe='')}")
        assert answer.status_code in (404, 405), answer.text
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["outside", "models", "plain", ".hidden", "link", *["config.json"] * 3]
    )


def test_toy_models_are_not_quantised() -> None:
    with fake_service() as service:
        answer = post(service)
        assert (answer.status_code, "toys without weights" in answer.text) == (400, True)
        assert copies(service)["data"] == []


ROUTES = [
    ("POST", f"{PATH}/plan"),
    ("GET", PATH),
    ("POST", PATH),
    ("DELETE", f"{PATH}/1"),
    ("GET", f"{PATH}/copies"),
    ("DELETE", f"{PATH}/copies/one"),
]


def test_copies_are_made_by_admins_and_where_changes_are_allowed_only() -> None:
    with keyed_service(
        Client("ann"), Client("root", admin=True), Client("tied", admin=True, models=frozenset({"other"}))
    ) as service:
        for method, path in ROUTES:
            body = {"model": "fake-hybrid"} if method == "POST" else None
            for name, is_refused in (("ann", True), ("root", False), ("tied", method == "POST" or "copies/" in path)):
                answer = service.client.request(method, path, headers=headers(name), json=body)
                assert (answer.status_code == 403) is is_refused, (name, path, answer.text)
    with fake_service(settings=ServerSettings(port=0, admin=False)) as service:
        for method, path in ROUTES:
            answer = service.client.request(method, path, json={"model": "x"} if method == "POST" else None)
            assert (answer.status_code, "server.admin = false" in answer.text) == (403, True), (path, answer.text)


def test_a_server_makes_a_copy_of_an_embedded_model(tmp_path: Path) -> None:
    """The whole way: the process that quantises, the room beside the loaded model, and the copy among the models."""
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default="cairn-demo", download=False, dirs=(str(tmp_path / "models"),)),
        store=StoreSettings(dir=str(tmp_path / "store"), quota=ByteSize(num_bytes=64 << 20)),
    )
    with live_service(settings) as live, httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client:
        order = {"model": "cairn-demo", "bits": 8, "check": False}
        planned = client.post(f"{PATH}/plan", json=order).json()
        assert 8 < planned["bits_per_weight"] < 9, planned
        assert client.post(PATH, json=order).status_code == 200
        wait_until(lambda: client.get(PATH).json()["data"][0]["state"] != "running", "the job to end")
        job = client.get(PATH).json()["data"][0]
        assert (job["state"], job["problem"], job["name"]) == ("done", "", "cairn-demo-8bit")
        assert "cairn-demo-8bit" in {one["id"] for one in client.get("/v1/models").json()["data"]}
        (copy,) = client.get(f"{PATH}/copies").json()["data"]
        assert (copy["source"], copy["state"], copy["note"]) == ("cairn-demo", "whole", "")
        again = client.post(PATH, json={"model": "cairn-demo-8bit"})
        assert (again.status_code, "is quantised already (Q8)" in again.text) == (400, True)
