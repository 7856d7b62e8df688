"""A server that drains says so to routers, and goes on answering what still arrives."""

from typing import Any

from adapters.fake.options import FakeOptions
from application.settings import ServerSettings
from domain.client import Client
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service, headers, keyed_service
from tests.support.processes.gate import Gate

DRAIN = "/admin/api/drain"
BODY: dict[str, Any] = {"model": DEFAULT_MODEL, "prompt": "x", "max_tokens": 4, "ignore_eos": True}


def loaded(service: FakeService) -> None:
    assert service.client.post("/v1/completions", json=BODY).status_code == 200
    assert service.client.get("/health/ready").status_code == 200


def test_a_drain_changes_readiness_only_and_is_undone() -> None:
    gate = Gate("decode", 7)
    with fake_service(FakeOptions(eos_every=0, hook=gate)) as service:
        loaded(service)
        with service.client.stream(
            "POST", "/v1/completions", json={**BODY, "max_tokens": 20, "stream": True}
        ) as answer:
            gate.wait_until_reached()
            found = service.client.post(DRAIN, json={})
            assert (found.status_code, found.json()) == (
                200,
                {"object": "cairn.drain", "draining": True, "waiting": 0, "running": 1},
            )
            ready = service.client.get("/health/ready")
            assert (ready.status_code, ready.json()["problem"]) == (503, "the server is draining")
            assert service.client.get("/get_load").json() == {"load": 1}
            gate.open()
            assert list(answer.iter_lines())[-2] == "data: [DONE]"
        assert service.client.post("/v1/completions", json=BODY).status_code == 200
        assert service.client.get("/health").status_code == 200
        assert service.client.get("/health/engine").status_code == 200
        assert service.client.delete(DRAIN).json()["draining"] is False
        assert service.client.get("/health/ready").status_code == 200


def test_only_admins_drain_and_only_where_changes_are_allowed() -> None:
    with keyed_service(Client("root", admin=True), Client("user")) as service:
        for rest in ({"method": "POST", "json": {}}, {"method": "DELETE"}):
            for status, whose in ((401, {}), (403, headers("user")), (200, headers("root"))):
                assert service.client.request(url=DRAIN, headers=whose, **rest).status_code == status
        assert service.client.get("/get_load").json() == {"load": 0}, "routers ask without a key"
    with fake_service(settings=ServerSettings(port=0, admin=False)) as service:
        assert service.client.post(DRAIN, json={}).status_code == 403
