"""Three servers behind the real vllm-router and sglang-router as deploy/fleet starts them: conversations stay, streams
survive, a server that is not ready or gone is passed over, and clients' keys reach the servers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.support.http.servers.fake_service import KEY, headers, keyed_service, wait_until
from tests.support.http.servers.fleet import MODEL, Fleet, behind, fleet_behind
from tests.support.processes.servers.proxies import ROUTERS

SESSIONS = {"vllm-router": ("consistent_hash", "x-session-id"), "sglang-router": ("manual", "x-smg-routing-key")}
LOADED = 17
"""Requests beyond which a router lets a server rest: one more than the difference that deploy/fleet allows."""

pytestmark = pytest.mark.parametrize("kind", ROUTERS)


@pytest.fixture
def fleet(kind: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_behind(kind, tmp_path) as found:
        yield found


@pytest.fixture
def sessions(kind: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet_behind(kind, tmp_path, "--policy", SESSIONS[kind][0]) as found:
        yield found


def text_of(number: int) -> str:
    return " ".join(f"{number * 7919 + word}" for word in range(40))


def test_a_conversation_stays_and_new_ones_go_where_there_is_less_to_do(fleet: Fleet) -> None:
    one, other = text_of(1), text_of(2)
    busy = fleet.ask(one)
    loaded = fleet.queued()[busy] + LOADED
    body = {"model": MODEL, "prompt": one, "max_tokens": 8}
    with ThreadPoolExecutor(LOADED) as pool:
        long = [pool.submit(fleet.client.post, "/v1/completions", json=body) for _ in range(LOADED)]
        fleet.gates[busy].wait_until_reached()
        wait_until(lambda: max(worker["load"] for worker in fleet.proxy.workers()) == LOADED, "the load to be counted")
        wait_until(lambda: fleet.queued()[busy] == loaded, "all to have arrived")
        idle = fleet.ask(other)
        fleet.gates[busy].open()
        assert {request.result().status_code for request in long} == {200}
    assert idle != busy
    assert {fleet.ask(f"{one} and {text_of(turn)}") for turn in (3, 4)} == {busy}
    assert {fleet.ask(f"{other} and {text_of(turn)}") for turn in (3, 4)} == {idle}


def test_a_session_stays_with_its_server(sessions: Fleet, kind: str) -> None:
    _, header = SESSIONS[kind]
    numbers = {
        name: {sessions.ask(text_of(turn), **{header: name}) for turn in range(3)} for name in map(str, range(9))
    }
    assert all(len(found) == 1 for found in numbers.values())
    assert len(set.union(*numbers.values())) > 1, "all sessions have one server"


def test_a_stream_is_passed_on_as_it_comes_and_outlives_its_servers_readiness(fleet: Fleet) -> None:
    body = {"model": MODEL, "prompt": text_of(1), "max_tokens": 8, "stream": True}
    busy = fleet.ask(text_of(1))
    server = fleet.services[busy].server
    address = server.base_url
    with fleet.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        assert any('"text"' in line for line in lines), "nothing came before the end"
        fleet.gates[busy].wait_until_reached()
        server.stop()  # it takes no connections any more
        wait_until(lambda: address not in fleet.proxy.healthy(), "the check to notice")
        assert fleet.ask(text_of(1)) != busy
        fleet.gates[busy].open()
        assert "data: [DONE]" in list(lines)


def test_a_server_that_is_gone_is_passed_over_and_no_request_fails(fleet: Fleet) -> None:
    gone = fleet.ask(text_of(1))
    fleet.stop(gone)
    assert gone not in {fleet.ask(text_of(1)) for _ in range(5)}


def test_a_server_that_is_not_ready_gets_no_requests_until_it_is(fleet: Fleet) -> None:
    at = fleet.ask(text_of(1))
    service = fleet.services[at]
    service.client.post("/models/unload", json={"model": MODEL})
    wait_until(lambda: service.base_url not in fleet.proxy.healthy(), "the check to notice")
    assert at not in {fleet.ask(text_of(1)) for _ in range(4)}
    service.client.post("/models/load", json={"model": MODEL})
    wait_until(lambda: service.base_url in fleet.proxy.healthy(), "the check to notice")


def test_the_routers_metrics_tell_of_each_server(fleet: Fleet, kind: str) -> None:
    fleet.ask()
    name = {"vllm-router": "vllm_router_worker_health", "sglang-router": "smg_worker_health"}[kind]
    lines = [line for line in httpx.get(fleet.proxy.metrics_url).text.splitlines() if line.startswith(name)]
    for service in fleet.services:
        assert any(service.base_url in line and line.endswith(" 1") for line in lines), lines


def test_keys_and_hosts_are_the_servers_matter(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = [keyed_service() for _ in range(3)]
        _, router = behind(stack, kind, made, tmp_path, (), headers("default"))
        client = stack.enter_context(httpx.Client(base_url=router.base_url))
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        sent = {"right": f"default{KEY}", "wrong": "another"}
        answers = {
            name: client.post(
                "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}", "host": "fleet.example"}
            )
            for name, key in sent.items()
        }
        assert {name: answer.status_code for name, answer in answers.items()} == {"right": 200, "wrong": 401}
        added = client.post("/workers", json={"url": "http://127.0.0.1:9"}) if kind == "sglang-router" else None
        assert added is None or added.status_code == 401
