"""Three servers behind a real proxy with the configuration of deploy/fleet: conversations stay, streams survive, and a
server that is drained, not ready or gone is passed over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http.servers.fake_service import wait_until
from tests.support.http.servers.fleet import Fleet, fleet_behind
from tests.support.processes.servers.proxies import Proxy

SESSIONS = ("x-claude-code-session-id", "x-session-id", "session-id", "authorization")


@pytest.fixture(params=["haproxy", "nginx"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_behind(request.param, tmp_path) as found:
        yield found


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
    fleet.stop(1)
    assert {fleet.ask(**session) for _ in range(5)} <= {0, 2}


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
