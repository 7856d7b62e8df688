"""`cairn ps` and `cairn stop`, and the flags of `cairn serve` that a server shows."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.patience import PATIENCE_S
from tests.support.processes.cli_process import run_cairn, run_here


@pytest.fixture
def server() -> Iterator[FakeService]:
    with fake_service() as running:
        running.client.post("/models/load", json={"model": DEFAULT_MODEL}).raise_for_status()
        yield running


def test_loaded_models_are_listed_and_stopped(tmp_path: Path, server: FakeService) -> None:
    listed = run_here(tmp_path, "ps", "--url", server.base_url)
    header, row = listed.stdout.splitlines()
    assert header.split() == ["model", "state", "weights", "context", "requests", "unloaded"]
    assert row.split()[:2] == [DEFAULT_MODEL, "loaded"]
    assert row.endswith("to make room")
    (found,) = json.loads(run_here(tmp_path, "ps", "--json", "--url", server.base_url).stdout)
    assert found["standing"]["id"] == DEFAULT_MODEL
    stopped = run_here(tmp_path, "stop", DEFAULT_MODEL, "--url", server.base_url)
    assert stopped.stdout.startswith(f"{DEFAULT_MODEL}: ")
    server.wait_until(lambda: not json.loads(run_here(tmp_path, "ps", "--json", "--url", server.base_url).stdout), "it")
    assert run_here(tmp_path, "stop", "nobody", "--url", server.base_url).returncode == 1


def test_a_taken_port_names_the_cairn_that_has_it(tmp_path: Path, server: FakeService) -> None:
    port = server.base_url.rsplit(":", 1)[1]
    refused = run_cairn(tmp_path, "serve", "--backend", "fake", "--port", port, "--no-store")
    assert refused.returncode == 1
    assert "a Cairn answers there: cairn status shows it" in refused.stderr
    contradicting = run_here(tmp_path, "serve", "--no-store", "--store", "/tmp/none")
    assert (contradicting.returncode, "contradict each other" in contradicting.stderr) == (2, True)
    wrong = run_here(tmp_path, "serve", "--context", "much")
    assert (wrong.returncode, "--context 'much' is not a number of tokens" in wrong.stderr) == (2, True)


def test_another_program_at_the_port_does_not_get_the_key(tmp_path: Path) -> None:
    heard: list[bytes] = []

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            heard.append(connection.recv(65_536))
            connection.sendall(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n")

    (key := tmp_path / "key").write_text("hunter2")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        port = str(listener.getsockname()[1])
        flags = ("--backend", "fake", "--no-store", "--api-key-file", str(key))
        refused = run_cairn(tmp_path, "serve", "--port", port, *flags)
        thread.join(PATIENCE_S)
    assert refused.returncode == 1
    assert "a Cairn answers there" not in refused.stderr
    assert heard
    assert b"hunter2" not in heard[0]
