"""A server whose compute thread deadlocks: every place that reports health says so, and systemd hears nothing."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.http.raw_client import RawClient
from tests.support.http.servers.fake_service import wait_until
from tests.support.processes.cli_process import PATIENCE_S, ROOT, CairnProcess, environment
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
