"""What an admin does with models over HTTP, what lists of models tell of it, and how a load that cannot fit is told."""

from itertools import product
from typing import Any

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions
from application.ports.model_repository import ModelPreview
from application.settings import ModelTable
from domain.models.residency import LoadRoom
from domain.request.sampling import SamplingDefaults
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service

OTHER = "fake-hybrid"


def post(service: FakeService, action: str, model: str, **rest: Any) -> Any:
    return service.client.post(f"/models/{action}", json={"model": model}, **rest)


def standing(service: FakeService, model: str) -> dict[str, Any]:
    found = {entry["standing"]["id"]: entry["standing"] for entry in service.client.get("/models").json()["data"]}
    return found[model]


def listed(service: FakeService, model: str) -> dict[str, Any]:
    return {entry["id"]: entry for entry in service.client.get("/v1/models").json()["data"]}[model]


def test_a_model_is_loaded_pinned_and_unloaded_by_hand() -> None:
    with fake_service(FakeOptions(weight_bytes=4_000_000)) as service:
        assert listed(service, OTHER)["state"] == "absent"
        answer = post(service, "load", OTHER)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "id": OTHER,
            "state": "loaded",
            "pinned": False,
            "requests": 0,
            "idle_ttl_s": None,
        }
        entry = listed(service, OTHER)
        assert (entry["state"], entry["bytes"], entry["pinned"]) == ("loaded", 4_000_000, False)
        assert post(service, "pin", OTHER).json()["pinned"]
        assert listed(service, OTHER)["pinned"]
        managed = {one["standing"]["id"]: one for one in service.client.get("/models").json()["data"]}
        assert managed[OTHER]["layout"] == [{"kind": "sliced", "window": None, "layers": 2}]
        assert managed["fake-attention"]["layout"] is None
        (running,) = service.client.get("/api/ps").json()["models"]
        assert running["size"] == 4_000_000
        assert not post(service, "unpin", OTHER).json()["pinned"]
        assert post(service, "unload", OTHER).json()["state"] in {"unloading", "absent"}
        service.wait_until(lambda: not service.engine.loaded, "the model to be unloaded")
        assert post(service, "unload", OTHER).status_code == 404


def test_what_is_asked_for_must_be_a_model_and_nothing_else() -> None:
    with fake_service() as service:
        for action in ("load", "pin", "unpin"):
            unknown = post(service, action, "nonsense")
            assert unknown.status_code == 404
            assert OTHER in unknown.json()["error"]["message"]
        assert service.client.post("/models/load", json={"model": OTHER, "force": True}).status_code == 400
        assert service.client.post("/models/load", json={}).status_code == 400


def test_tables_say_what_requests_get_that_leave_it_open() -> None:
    table = ModelTable(context_length=300, sampling=SamplingDefaults(temperature=0.0))
    with fake_service(tables={DEFAULT_MODEL: table}) as service:
        body = {"model": DEFAULT_MODEL, "prompt": "once upon", "max_tokens": 20, "ignore_eos": True}
        answers = {service.client.post("/v1/completions", json=body).json()["choices"][0]["text"] for _ in range(3)}
        assert len(answers) == 1, "greedy by default"
        drawn = {
            service.client.post("/v1/completions", json={**body, "temperature": 2.0, "seed": seed}).json()["choices"][
                0
            ]["text"]
            for seed in range(3)
        }
        assert len(drawn) > 1, "a client's own wins"
        entry = next(e for e in service.client.get("/models").json()["data"] if e["standing"]["id"] == DEFAULT_MODEL)
        assert (entry["context_length"], entry["sampling"]) == (300, {"temperature": 0.0})


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5},
    "/api/chat": {"messages": [{"role": "user", "content": "hi"}]},
}


def test_a_load_that_cannot_fit_says_by_how_much_in_every_dialect() -> None:
    def check(source: Any, options: Any) -> Any:
        return ModelPreview(9 << 30, expert_bytes=7 << 30) if source.id == OTHER else ModelPreview(1 << 20)

    with fake_service(check=check, room=lambda: LoadRoom(limit_bytes=4 << 30)) as service:
        post(service, "load", DEFAULT_MODEL)
        for path, stream in product(BODIES, (False, True)):
            answer = service.client.post(path, json={**BODIES[path], "model": OTHER, "stream": stream})
            assert answer.status_code == 503
            told = ("need 9 GiB", "4 GiB are available", "5 GiB too much", "7 GiB of the weights are experts")
            assert all(words in answer.text for words in told)
            assert "Retry-After" not in answer.headers
            assert standing(service, DEFAULT_MODEL)["state"] == "loaded", "nothing is evicted in vain"
            if path.startswith("/v1/c"):
                assert answer.json()["error"]["code"] == "model_exceeds_memory"


def test_the_list_says_what_does_not_fit_by_how_much_and_what_experts_take() -> None:
    checked = list[str]()

    def check(source: Any, options: Any) -> Any:
        checked.append(source.id)
        return ModelPreview(9 << 30, expert_bytes=7 << 30) if source.id == OTHER else ModelPreview(5 << 30)

    room = LoadRoom(limit_bytes=6 << 30)
    with fake_service(check=check, models=FakeModels(file_bytes=8 << 30), room=lambda: room) as service:
        for _ in range(2):
            told = {one["standing"]["id"]: one["memory"] for one in service.client.get("/models").json()["data"]}
        assert "3 GiB too much; 7 GiB of the weights are experts" in told[OTHER]
        assert told[DEFAULT_MODEL] == "", "its files are larger than what is loaded of them"
        assert checked == sorted(set(checked)), "headers are read once"
        post(service, "load", DEFAULT_MODEL)
        room = LoadRoom(limit_bytes=100 << 30)
        assert {one["memory"] for one in service.client.get("/models").json()["data"]} == {""}
