"""A server whose engine deadlocks, is killed or was upgraded: health, answers and the process's end.

The kills are few by default; `make test-long` kills two hundred times."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.support.effort import EFFORT
from tests.support.engines.failing_device import WORDS as DEVICE_WORDS
from tests.support.engines.process.answer_streams import STREAMS, WORDS, Answer, read_all
from tests.support.engines.process.killed_engine import KilledServer, killed_server
from tests.support.http.clients import RawClient
from tests.support.http.servers.fake_service import wait_until
from tests.support.mlx.small_demos import SMALL_DEMO, SMALL_HYBRID, write_small_demos
from tests.support.processes.cli_process import PATIENCE_S, ROOT, CairnProcess, cairn_process, environment
from tests.support.telemetry.notify_socket import HAS_ABSTRACT, notify_socket


@pytest.mark.skipif(not HAS_ABSTRACT, reason="sockets without a name in a folder are Linux's")
def test_a_deadlocked_engine_is_seen_everywhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.http.servers.wedged_server"]
    with notify_socket(is_abstract=True) as systemd:
        variables = environment(tmp_path, NOTIFY_SOCKET=systemd.address) | {"OTEL_SDK_DISABLED": "false"}
        server = CairnProcess(
            subprocess.Popen(
                command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
        try:
            found = re.search(r"at (http://\S+)/v1", server.read_until("Cairn serves"))
            assert found
            with httpx.Client(base_url=found[1], timeout=PATIENCE_S) as client:
                systemd.read_until("READY=1")
                see_it_stuck(server, client)
                assert "WATCHDOG=1" in systemd.waiting(), "until it was stuck"
                assert client.get("/health/live").status_code == 200
                assert systemd.waiting() == [], "not since it was seen"
        finally:
            server.close()


def see_it_stuck(server: CairnProcess, client: httpx.Client) -> None:
    assert client.get("/health/ready").status_code == 200
    asking = RawClient(str(client.base_url), "/v1/completions", {"prompt": "x", "max_tokens": 3})
    wait_until(lambda: client.get("/health/ready").status_code == 503, "readiness to fail")
    assert "the engine is stuck: decode" in client.get("/health/ready").json()["problem"]
    engine = client.get("/health/engine")
    assert (engine.status_code, engine.json()["status"], engine.json()["stuck_in"]) == (503, "stuck", "decode")
    assert engine.json()["outstanding"]["running"] == 1
    page = client.get("/admin/api/overview").json()["health"]
    assert (page["status"], page["engine"]["stuck_in"]) == ("not ready", "decode")
    line = server.read_until("stuck in decode")
    assert f"requests={engine.json()['requests'][0]}" in line
    server.read_until("thread cairn-compute:")
    server.read_until("in main.<locals>.deadlock")
    assert "cairn_engine_stuck 1.0" in client.get("/metrics").text
    asking.leave()


IS_LONG = EFFORT >= 5
SHARE_WITHIN = 0.85 if IS_LONG else 0.1
"""Of the events of the undisturbed answers, before which the engine is killed. A toy may have computed all before a
client has read half of it, so that late kills disturb no client: those are for the long runs."""

NUM_WARM = 10
MORE_THREADS, MORE_BYTES = 4, 16 << 20
"""What the server's process may hold more after all kills than after the first few."""

_logger = logging.getLogger(__name__)
reads_proc = pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")


def check_calm(answers: dict[str, Answer]) -> None:
    """They are what was asked for, and so worth to be compared with."""
    assert {name: answer.problems for name, answer in answers.items()} == {name: [] for name in STREAMS}
    for name in ("called", "message_called"):
        (call,) = answers[name].calls.values()
        assert call.startswith("report")
        assert len(json.loads(call.removeprefix("report"))["days"]) == WORDS["minItems"]
    for name in ("formed", "response_formed"):
        assert len(json.loads(answers[name].texts[0])["days"]) == WORDS["minItems"]
    assert len(answers["choices"].texts) == 2
    assert all(answer.ends and answer.num_tokens for answer in answers.values())


def kill_times(server: KilledServer, num_kills: int, seed: int) -> None:
    calm, num_events = server.calm()
    check_calm(calm)
    most, draw, held = int(num_events * SHARE_WITHIN), Random(seed), server.held()
    for number in range(num_kills):
        # Every other time nothing of the prompts is in the store, and the engine may be killed while it computes them.
        answers = server.disturbed(draw, most, f"salt {number}" if number % 2 else "")
        for name in STREAMS:
            assert answers[name] == calm[name], (seed, number, name)
        if number == NUM_WARM - 1:
            held = server.held()
    after = server.held(held)
    _logger.info("%d kills: choices that went on %s; held %s, then %s", num_kills, server.num_resumed, held, after)
    assert after.children == held.children
    assert after.leaked(held) == {}
    if num_kills > NUM_WARM:  # pools of threads have grown to their bounds by then
        assert sum(map(bool, server.num_resumed)) >= num_kills / 4, "they were killed too late to disturb anybody"
        assert after.num_threads <= held.num_threads + MORE_THREADS
        assert after.resident_bytes <= held.resident_bytes + MORE_BYTES


@reads_proc
def test_of_the_toy_models(tmp_path: Path) -> None:
    with killed_server(tmp_path, ("--backend", "fake"), is_killed_often=IS_LONG) as server:
        kill_times(server, 100 if IS_LONG else 1, seed=1)


@reads_proc
@pytest.mark.skipif(not IS_LONG, reason="a hundred starts of MLX")
@pytest.mark.parametrize(("name", "seed"), [(SMALL_DEMO, 2), (SMALL_HYBRID, 3)])
def test_of_models_on_mlx(tmp_path: Path, name: str, seed: int) -> None:
    folder = write_small_demos(tmp_path / "models") / name
    with killed_server(tmp_path, (str(folder), "--memory", "1GiB"), is_killed_often=True) as server:
        kill_times(server, 50, seed)


def test_a_device_that_fails_is_a_pause_for_everybody(tmp_path: Path) -> None:
    with killed_server(tmp_path / "calm", ("--backend", "fake"), is_killed_often=False) as server:
        calm, _ = server.calm()
    command = ("serve", "--port", "0", "--block-size", "16", "--prefill-grid", "32", "--backend", "fake")
    variables = {"FAILING_DEVICE": f"60:{tmp_path / 'mark'}", "OTEL_SDK_DISABLED": "false"}
    with cairn_process(tmp_path, command, module="tests.support.engines.process.failing_server", **variables) as cairn:
        served = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
        assert served
        assert read_all(served[1], "", lambda: None) == calm
        assert DEVICE_WORDS in cairn.read_until("another engine took over")
        with httpx.Client(base_url=served[1], timeout=PATIENCE_S) as client:
            engine = client.get("/health/engine").json()
            assert (engine["status"], engine["last_loss"]) == (
                "ok",
                f"the engine stopped: the device failed: {DEVICE_WORDS}",
            )
            assert client.get("/admin/api/overview").json()["health"]["engine"]["last_loss"] == engine["last_loss"]
            assert re.search(r'cairn_faults_total\{cairn_where="engine.device"[^\n]* 1.0', client.get("/metrics").text)


def test_a_server_that_was_upgraded_ends_with_a_clear_message(tmp_path: Path) -> None:
    arguments = ("serve", "--port", "0", "--backend", "fake")
    with cairn_process(tmp_path, arguments, module="tests.support.engines.process.upgraded_server") as cairn:
        launched = re.search(r"process (\d+)", cairn.read_until("the engine runs in process"))
        served = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
        assert launched
        assert served
        with httpx.Client(base_url=served[1], timeout=PATIENCE_S) as client:
            os.kill(int(launched[1]), signal.SIGSTOP)  # so that it does not answer before it is killed
            asking = RawClient(served[1], "/v1/completions", {"prompt": "x", "max_tokens": 3})
            wait_until(lambda: client.get("/health/engine").json()["outstanding"]["waiting"], "the request to arrive")
            os.kill(int(launched[1]), signal.SIGKILL)
            asking.read_until(b"cairn was upgraded while it was running; restart the server")
            asking.leave()
        assert cairn.wait() == 1
        cairn.read_to_end()
        assert cairn.seen[-1] == "cairn: cairn was upgraded while it was running; restart the server\n"
