"""Three servers behind a real proxy with the configuration of deploy/fleet: conversations stay, streams survive, and a
server that is drained, not ready or gone is passed over."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from adapters.fake import FakeOptions
from tests.support.http.servers.fake_service import FakeService, fake_service, wait_until
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate
from tests.support.processes.servers.proxies import Proxy, proxy

SESSIONS = ("x-claude-code-session-id", "x-session-id", "session-id", "authorization")


@dataclass
class Fleet:
    services: list[FakeService]
    gates: list[Gate]
    proxy: Proxy
    client: httpx.Client

    def ask(self, **headers: str) -> int:
        """Returns the number of the server that answered."""
        before = [len(service.events.of("RequestQueued")) for service in self.services]
        body = {"model": "fake-attention", "prompt": "say something", "max_tokens": 2}
        answer = self.client.post("/v1/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        after = [len(service.events.of("RequestQueued")) for service in self.services]
        (number,) = [at for at in range(len(after)) if after[at] > before[at]]
        return number

    def session_of(self, number: int) -> str:
        """A session that this server has."""
        return next(name for name in map(str, range(1000)) if self.ask(**{"x-session-id": name}) == number)


@pytest.fixture(params=["haproxy", "nginx"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        gates = [Gate("decode", 3) for _ in range(3)]
        options = [FakeOptions(eos_every=0, hook=gate) for gate in gates]
        services = [stack.enter_context(fake_service(one)) for one in options]
        for service in services:
            service.client.post("/v1/completions", json={"model": "fake-attention", "prompt": "x", "max_tokens": 1})
        addresses = [service.base_url.removeprefix("http://") for service in services]
        one = stack.enter_context(proxy(request.param, addresses, tmp_path))
        client = stack.enter_context(httpx.Client(base_url=one.base_url, timeout=PATIENCE_S))
        yield Fleet(services, gates, one, client)
        for gate in gates:
            gate.open()


def test_a_conversation_stays_with_its_server(fleet: Fleet) -> None:
    for header in SESSIONS:
        numbers = {
            session: {fleet.ask(**{header: f"Bearer {session}"}) for _ in range(3)} for session in map(str, range(9))
        }
        assert all(len(found) == 1 for found in numbers.values())
        assert len(set.union(*numbers.values())) > 1, "all sessions have one server"
    # a session goes before a key
    found = {fleet.ask(authorization="Bearer one", **{"x-session-id": str(number)}) for number in range(12)}
    assert len(found) > 1


def test_a_stream_is_passed_on_as_it_comes_and_outlives_a_drain(fleet: Fleet) -> None:
    session = {"x-session-id": fleet.session_of(0)}
    body = {"model": "fake-attention", "prompt": "a long answer", "max_tokens": 8, "stream": True}
    with fleet.client.stream("POST", "/v1/completions", json=body, headers=session) as answer:
        lines = answer.iter_lines()
        assert any('"text"' in line for line in lines), "nothing came before the end"
        fleet.gates[0].wait_until_reached()
        if fleet.proxy.kind == "haproxy":
            assert fleet.proxy.command("set server servers/one state drain").strip() == ""
            assert fleet.ask(**session) != 0, "a drained server got a request"
        fleet.gates[0].open()
        rest = list(lines)
    assert "data: [DONE]" in rest
    if fleet.proxy.kind == "haproxy":
        fleet.proxy.command("set server servers/one state ready")
        wait_until(lambda: fleet.ask(**session) == 0, "the conversation to come back")


def test_a_server_that_is_gone_is_passed_over_and_no_request_fails(fleet: Fleet) -> None:
    session = {"x-session-id": fleet.session_of(1)}
    fleet.services[1].server.stop()
    wait_until(lambda: not is_open(fleet.services[1]), "the server to be closed")
    assert {fleet.ask(**session) for _ in range(5)} <= {0, 2}


def is_open(service: FakeService) -> bool:
    try:
        httpx.get(f"{service.base_url}/health/live")
    except httpx.TransportError:
        return False
    return True


def test_a_server_that_is_not_ready_gets_no_requests(fleet: Fleet) -> None:
    if fleet.proxy.kind == "nginx":
        pytest.skip("nginx asks for no readiness: it passes a server over that answers 503")
    session = {"x-session-id": fleet.session_of(2)}
    fleet.services[2].client.post("/models/unload", json={"model": "fake-attention"})
    is_ready = fleet.services[2].client.get("/health/ready").status_code == 200
    assert not is_ready
    wait_until(lambda: "DOWN" in state(fleet.proxy, "three"), "the check to notice")
    assert {fleet.ask(**session) for _ in range(4)} <= {0, 1}


def state(proxy: Proxy, name: str) -> str:
    (line,) = [line for line in proxy.command("show stat").splitlines() if line.startswith(f"servers,{name},")]
    return line
