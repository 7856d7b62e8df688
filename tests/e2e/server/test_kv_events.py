"""KV events of `cairn serve` as a process: what a subscriber is published, and the two consumers that read them.

The consumers run where CAIRN_KV_CONSUMERS names an environment that has vllm-router and ai-dynamo.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from tests.support.patience import PATIENCE_S
from tests.support.processes.cli_process import base_url, cairn_process
from tests.support.stores.event_reader import EventReader

SERVE = ("serve", "--backend", "fake", "--port", "0")
SIZE = 16
CONSUMERS = os.environ.get("CAIRN_KV_CONSUMERS", "")
needs_consumers = pytest.mark.skipif(not CONSUMERS, reason="CAIRN_KV_CONSUMERS names no environment of the consumers")


@dataclass(frozen=True)
class Server:
    url: str
    endpoint: str
    replay: str

    def ask(self, prompt: list[int], **more: Any) -> None:
        body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, **more}
        httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S).raise_for_status()


def ids(number: int) -> list[int]:
    """A prompt of a hundred tokens that begins like no other."""
    return [40 + number, *(50 + at % 40 for at in range(99))]


def _addresses(number: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    names = [f"tcp://127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return names


@contextmanager
def serving(home: Path) -> Iterator[Server]:
    endpoint, replay = _addresses(2)
    variables = {"CAIRN_CACHE__EVENTS": endpoint, "CAIRN_CACHE__EVENTS_REPLAY": replay}
    with cairn_process(home, SERVE, **variables) as cairn:
        url = base_url(cairn)
        yield Server(url, endpoint, replay)
        cairn.send(signal.SIGTERM)
        assert cairn.wait() == 0


def until(is_so: Callable[[], bool]) -> None:
    """Between two looks a poll of nothing waits a little."""
    with zmq.Context[zmq.Socket[bytes]]() as context, context.socket(zmq.PULL) as nothing:
        assert any(is_so() or nothing.poll(100) for _ in range(int(PATIENCE_S * 10)))


def test_a_subscriber_is_published_what_the_server_keeps_and_nothing_of_a_salted_request(tmp_path: Path) -> None:
    salted, plain = ids(1), ids(2)
    with serving(tmp_path) as server:
        server.ask(salted, cache_salt="alice")
        server.ask(plain)
        with closing(EventReader(server.endpoint, server.replay, SIZE)) as reader:
            while tuple(plain[:96]) not in reader.picture.blocks:
                reader.read()
            assert {path[0] for path in reader.picture.blocks} == {plain[0]}
            httpx.post(f"{server.url}/v1/cache/clear", json={}, timeout=PATIENCE_S).raise_for_status()
            while reader.picture.blocks:
                reader.read()


def test_an_address_in_use_ends_it_with_one_line_that_names_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"tcp://127.0.0.1:{other.getsockname()[1]}"
        with cairn_process(tmp_path, SERVE, CAIRN_CACHE__EVENTS=address) as cairn:
            assert "Address already in use" in cairn.read_until(f"cache.events: cannot listen on {address}")
            assert cairn.wait() == 1
            assert not [line for line in cairn.seen if "Traceback" in line]


@contextmanager
def consumer(*command: str) -> Iterator[None]:
    process = subprocess.Popen([f"{CONSUMERS}/bin/{command[0]}", *command[1:]], stdout=-3, stderr=-3)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def answers(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    try:
        answer = httpx.get(url + path) if body is None else httpx.post(url + path, json=body, timeout=PATIENCE_S)
    except httpx.TransportError:
        return None
    is_json = answer.text.startswith(("{", "["))
    return (answer.json() if is_json else answer) if answer.is_success else None


@needs_consumers
@pytest.mark.slow
def test_a_late_dynamo_indexer_knows_which_server_has_a_prefix(tmp_path: Path) -> None:
    (port,) = _addresses(1)
    url = port.replace("tcp", "http")
    with serving(tmp_path / "a") as first, serving(tmp_path / "b") as second:
        prompts = [ids(at) for at in range(1, 7)]
        for at, prompt in enumerate(prompts):
            (first, second)[at % 2].ask(prompt)
        with consumer("python", "-m", "dynamo.indexer", "--port", url.rpartition(":")[2]):
            until(lambda: answers(url, "/health") is not None)
            for id, server in enumerate((first, second), 1):
                source = {"endpoint": server.endpoint, "replay_endpoint": server.replay}
                assert answers(url, "/register", {"instance_id": id, "model_name": "toy", "block_size": SIZE, **source})

            def scores() -> list[dict[str, int]]:
                found = [answers(url, "/query", {"token_ids": prompt, "model_name": "toy"}) for prompt in prompts]
                return [{id: own["0"] for id, own in one["scores"].items()} for one in found]

            until(lambda: scores() == [{"1": 96}, {"2": 96}] * 3)


@needs_consumers
@pytest.mark.slow
def test_a_late_vllm_router_sends_each_prompt_to_the_server_that_has_it(tmp_path: Path) -> None:
    (port,) = _addresses(1)
    url = port.replace("tcp", "http")
    with serving(tmp_path / "a") as first, serving(tmp_path / "b") as second:
        bodies = [
            {"messages": [{"role": "user", "content": f"{at} " * 80}], "max_tokens": 2, "model": "fake-attention"}
            for at in range(1, 7)
        ]
        for at, body in enumerate(bodies):
            assert answers((first, second)[at % 2].url, "/v1/chat/completions", body)
        sources = [
            option
            for server in (first, second)
            for option in (
                *("--kv-event-source", f"{server.url}={server.endpoint}"),
                *("--kv-event-replay-source", f"{server.url}={server.replay}"),
            )
        ]
        options = ("--policy", "kv_aware", "--kv-event-block-size", str(SIZE), "--kv-event-model", "fake-attention")
        command = ("vllm-router", "--worker-urls", first.url, second.url, "--port", url.rpartition(":")[2])
        with consumer(*command, *options, *sources):
            until(lambda: answers(url, "/readiness") is not None)
            for _ in range(80):  # two heartbeats, so that it has asked for what it missed
                with zmq.Context[zmq.Socket[bytes]]() as context, context.socket(zmq.PULL) as nothing:
                    nothing.poll(100)
            found = [answers(url, "/v1/chat/completions", body) for body in bodies]
        reused = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in found]
        assert all(reused), reused
