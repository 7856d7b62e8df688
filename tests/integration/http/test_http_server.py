"""The socket: real ports, taken ports, start and stop; and the health routes around it."""

import socket
from concurrent.futures import Future
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from application.settings import ServerSettings
from domain.ids import SequenceId
from interfaces.http.front.server import AddressUnavailable, HttpServer
from tests.support.http.clients import RawClient
from tests.support.http.servers.fake_service import fake_service
from tests.support.processes.gate import Gate


def test_small_answers_are_not_held_back_by_nagles_algorithm() -> None:
    """asyncio turns it off only for sockets that name their protocol; each answer took 40 ms longer without."""
    server = HttpServer(ServerSettings(port=0))
    try:
        assert server._socket.proto == socket.IPPROTO_TCP
    finally:
        server.close()


def test_a_wildcard_address_is_shown_as_one_to_connect_to() -> None:
    server = HttpServer(ServerSettings(host="0.0.0.0", port=0, api_key="k"))
    try:
        assert server.base_url == f"http://127.0.0.1:{server.port}"
    finally:
        server.close()


def test_a_taken_port_is_said_plainly() -> None:
    first = HttpServer(ServerSettings(port=0))
    try:
        with pytest.raises(AddressUnavailable, match=rf"127\.0\.0\.1:{first.port}: .*in use.*--port"):
            HttpServer(ServerSettings(port=first.port))
        with pytest.raises(AddressUnavailable, match=r"192\.0\.2\.1"):  # somebody else's
            HttpServer(ServerSettings(host="192.0.2.1", port=0, api_key="k"))
    finally:
        first.close()


def test_after_it_stopped_the_port_is_free_again() -> None:
    with fake_service() as service:
        port = service.server.port
        assert service.client.get("/health").status_code == 200
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_running_requests_finish_before_the_server_stops() -> None:
    gate = Gate("decode", 2)
    with fake_service(FakeOptions(eos_every=0, hook=gate)) as service:
        client = RawClient(service.base_url, "/v1/completions", {"prompt": "x", "stream": True, "max_tokens": 20})
        gate.wait_until_reached()
        service.server.stop()
        gate.open()
        client.read_until(b"data: [DONE]")
        client.leave()


ASKED = [{"role": "user", "content": "x"}]
STREAMS: dict[str, tuple[dict[str, Any], bytes]] = {
    "/v1/completions": ({"prompt": "x"}, b'"code":"server_unavailable"'),
    "/v1/chat/completions": ({"messages": ASKED}, b'"code":"server_unavailable"'),
    "/v1/responses": ({"input": "x"}, b"event: response.failed"),
    "/v1/messages": ({"messages": ASKED, "max_tokens": 9000}, b"event: error"),
    "/api/chat": ({"messages": ASKED}, b'"error":"the server is stopping'),
}


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_outlives_the_grace_ends_with_its_dialect_s_error(path: str) -> None:
    body, error = STREAMS[path]
    gate = Gate("decode", 2)
    with fake_service(FakeOptions(eos_every=0, hook=gate)) as service:
        client = RawClient(service.base_url, path, {"model": service.model, "stream": True, **body})
        gate.wait_until_reached()
        service.server.stop(grace_s=0)
        told = client.read_until(b"\r\n0\r\n\r\n")  # the body's proper end
        gate.open()
        assert error in told
        assert b"the server is stopping" in told
        client.leave()


@pytest.mark.parametrize("loads", [True, False])
def test_who_waits_for_an_answer_when_the_grace_is_over_is_refused(loads: bool) -> None:
    gate, files = Gate("decode", 2), Future[None]()
    with fake_service(FakeOptions(eos_every=0, hook=gate, load_waits_for=files)) as service:
        if not loads:
            files.set_result(None)
        client = RawClient(service.base_url, "/v1/completions", {"prompt": "x"})
        if loads:
            service.wait_until(lambda: bool(service.requests.preparations()), "it to wait for its model")
        else:
            gate.wait_until_reached()
        service.server.stop(grace_s=0)
        told = client.read_until(b"the server is stopping").lower()
        gate.open()
        if loads:
            files.set_result(None)
        assert told.startswith(b"http/1.1 503")
        assert b"retry-after" in told
        client.leave()


def test_ready_means_that_a_model_can_answer() -> None:
    gate = Gate("decode", 0)
    with fake_service(FakeOptions(hook=gate)) as service:
        response = service.client.get("/health/ready")
        assert response.status_code == 503
        assert response.json() == {
            "status": "not ready",
            "problem": "no model is loaded yet",
            "waiting": 0,
            "running": 0,
            "waiting_for": {},
            "models": [],
            "loading": None,
        }
        client = RawClient(service.base_url, "/v1/completions", {"prompt": "x", "max_tokens": 3})
        gate.wait_until_reached()
        ready = service.client.get("/health/ready")
        assert (ready.status_code, ready.json()["running"], ready.json()["models"]) == (200, 1, ["fake-attention"])
        well = service.client.get("/health/engine")
        assert (well.status_code, well.json()["status"], well.json()["stuck_in"]) == (200, "ok", None)
        service.clock.advance(61)
        not_ready, engine = service.client.get("/health/ready"), service.client.get("/health/engine")
        assert (not_ready.status_code, engine.status_code) == (503, 503)
        assert not_ready.json()["problem"] == "the engine is stuck: decode has not finished for 61 s"
        stuck = engine.json()
        assert (stuck["status"], stuck["stuck_in"], stuck["doing"]) == ("stuck", "decode", "decode")
        assert (stuck["stuck_s"], stuck["doing_s"], stuck["last_step_age_s"]) == (61, 61, 61)
        assert stuck["outstanding"] == {"waiting": 0, "running": 1, "calls": 0}
        assert len(stuck["requests"]) == 1
        assert service.client.get("/health/live").status_code == 200
        gate.open()
        client.read_until(b'"usage"')
        client.leave()
        assert service.client.get("/health/engine").json()["requests"] == []
        assert service.client.get("/health/ready").status_code == 200


def test_version_and_document() -> None:
    with fake_service() as service:
        assert service.client.get("/version").json() == {"version": "9.9"}
        document = service.client.get("/schema/openapi.json").json()
        assert document["info"]["title"] == "Cairn"
        operation = document["paths"]["/v1/chat/completions"]["post"]
        assert set(operation["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
        expected = {"200", "400", "401", "403", "404", "413", "415", "421", "429", "500", "503"}
        assert set(operation["responses"]) == expected
        assert "ErrorBody" in document["components"]["schemas"]


def test_models_say_what_is_loaded() -> None:
    with fake_service(reuses=True) as service:
        before = {model["id"]: model["cairn"] for model in service.client.get("/v1/models").json()["data"]}
        assert set(before.values()) == {None}
        service.client.post("/v1/completions", json={"prompt": "x", "model": "fake-hybrid", "max_tokens": 1})
        loaded = service.client.get("/v1/models/fake-hybrid").json()
        assert loaded["object"] == "model"
        assert loaded["cairn"]["context_length"] == 32_768
        assert loaded["cairn"]["prefix_reuse"] is True


def test_each_phase_of_a_load_is_told_with_the_seconds_that_are_left() -> None:
    files, gates = Future[None](), [Gate("load_piece", 0), Gate("load_piece", 1), Gate("measure", 0)]

    def hook(operation: str, sequence: SequenceId | None, count: int) -> None:
        for gate in gates:
            gate(operation, sequence, count)

    def told(phase: str, fraction: float | None, seconds_left: float | None) -> None:
        expected = {"model": service.model, "phase": phase, "fraction": fraction, "seconds_left": seconds_left}
        for path in ("ready", "engine"):
            assert service.client.get(f"/health/{path}").json()["loading"] == expected
        overview = service.client.get("/admin/api/overview").json()
        assert overview["health"]["engine"]["loading"] == expected

    with fake_service(FakeOptions(hook=hook, load_waits_for=files, load_pieces=4)) as service:
        client = RawClient(service.base_url, "/v1/completions", {"prompt": "x", "max_tokens": 1})
        service.wait_until(lambda: service.client.get("/health/engine").json()["loading"] is not None, "a load")
        told("hashing", 0, None)
        files.set_result(None)
        gates[0].wait_until_reached()
        told("reading", 0, None)
        service.clock.advance(5)
        gates[0].open()
        gates[1].wait_until_reached()
        told("reading", 0.25, 15)
        service.clock.advance(3)
        told("reading", 0.25, 12)
        gates[1].open()
        gates[2].wait_until_reached()
        told("measuring", None, None)
        gates[2].open()
        client.read_until(b'"usage"')
        assert service.client.get("/health/ready").json()["loading"] is None
        client.leave()
