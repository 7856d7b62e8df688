"""`cairn serve` as a process: what it prints, how it ends, and how it fails; on the toy engine."""

import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.support.processes.cli_process import PATIENCE_S, base_url, cairn_process, run_here
from tests.support.telemetry.notify_socket import notify_socket

SERVE = ("serve", "--backend", "fake", "--port", "0")


def test_it_answers_tells_where_it_is_and_stops_when_asked(tmp_path: Path):
    with (
        notify_socket() as systemd,
        cairn_process(tmp_path, SERVE, NOTIFY_SOCKET=systemd.address) as cairn,
    ):
        url = base_url(cairn)
        systemd.read_until("READY=1")
        assert f"curl {url}/v1/chat/completions" in cairn.read_until("curl")
        assert str(tmp_path) in cairn.read_until("  data ")
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert answer.json()["model"] == "fake-attention"
        cairn.send(signal.SIGTERM)
        systemd.read_until("STOPPING=1")
        assert cairn.wait() == 0
        assert not [line for line in cairn.seen if "Traceback" in line]


def test_a_second_signal_ends_it_at_once(tmp_path: Path):
    with cairn_process(tmp_path, SERVE) as cairn:
        address = httpx.URL(base_url(cairn))
        body = b'{"prompt": "x", "stream": true, "ignore_eos": true, "max_tokens": 30000}'
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc.decode()}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}"
        with socket.create_connection((address.host, address.port or 0), timeout=PATIENCE_S) as client:
            # A client that takes its answer but never reads it: a graceful stop waits for it.
            client.sendall(f"{head}\r\n\r\n".encode() + body)
            assert client.recv(12) == b"HTTP/1.1 200"
            cairn.send(signal.SIGINT)
            cairn.read_until("again to stop at once")
            cairn.send(signal.SIGTERM)
            assert cairn.wait() == 128 + signal.SIGTERM


def test_a_server_that_drains_answers_what_still_arrives(tmp_path: Path):
    body = {"prompt": "x", "max_tokens": 4}
    with notify_socket() as systemd:
        settings = {"CAIRN_SERVER__DRAIN_GRACE": "1h", "NOTIFY_SOCKET": systemd.address}
        with cairn_process(tmp_path, SERVE, **settings) as cairn, httpx.Client(timeout=PATIENCE_S) as client:
            url = base_url(cairn)
            long = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 400}
            with client.stream("POST", f"{url}/v1/completions", json=long) as stream:
                lines = stream.iter_lines()
                assert next(lines).startswith("data: ")
                cairn.send(signal.SIGTERM)
                cairn.read_until("draining for 1h")
                systemd.read_until("STOPPING=1")
                ready = httpx.get(f"{url}/health/ready", timeout=PATIENCE_S)
                assert (ready.status_code, ready.json()["problem"]) == (503, "the server is draining")
                with ThreadPoolExecutor(8) as threads:
                    asked = [
                        threads.submit(httpx.post, f"{url}/v1/completions", json=body, timeout=PATIENCE_S)
                        for _ in range(24)
                    ]
                    assert {one.result().status_code for one in asked} == {200}
                assert list(lines)[-2] == "data: [DONE]"
            assert client.post(f"{url}/v1/completions", json=body).status_code == 200
            cairn.send(signal.SIGTERM)
            assert cairn.wait() == 128 + signal.SIGTERM


def test_a_drain_ends_with_the_server(tmp_path: Path):
    with cairn_process(tmp_path, SERVE, CAIRN_SERVER__DRAIN_GRACE="1s") as cairn:
        base_url(cairn)
        cairn.send(signal.SIGTERM)
        cairn.read_until("draining for 1s")
        assert cairn.wait() == 0
    with cairn_process(tmp_path, SERVE, CAIRN_SERVER__DRAIN_GRACE="1h") as cairn:
        base_url(cairn)
        cairn.send(signal.SIGINT)
        cairn.read_until("stopping after the running requests")
        assert cairn.wait() == 0


def test_a_taken_port_is_an_error_with_advice(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with cairn_process(tmp_path, ("serve", "--backend", "fake", "--port", str(port))) as cairn:
            assert "--port" in cairn.read_until(f"cairn: cannot listen on 127.0.0.1:{port}")
            assert cairn.wait() == 1


def test_a_model_that_is_not_there_ends_it(tmp_path: Path):
    with cairn_process(tmp_path, ("serve", "no-such-model", *SERVE[1:])) as cairn:
        cairn.read_until("cairn: no model named no-such-model")
        assert cairn.wait() == 1


def test_what_computes_that_cannot_be_imported_is_one_line(tmp_path: Path):
    (tmp_path / "mlx").mkdir()
    (tmp_path / "mlx" / "__init__.py").write_text("raise ImportError('libmlx.so: no such file')")
    with cairn_process(tmp_path, ("serve", "--port", "0"), PYTHONPATH=str(tmp_path)) as cairn:
        told = cairn.read_until("cairn: the engine cannot be made")
        assert told.endswith("ImportError: libmlx.so: no such file\n")
        assert cairn.wait() == 1
        assert not [line for line in cairn.seen if "Traceback" in line]


def test_key_and_log_format_reach_the_server(tmp_path: Path):
    file = tmp_path / "key"
    file.write_text("k\n")
    with cairn_process(tmp_path, (*SERVE, "--log-format", "json", "--api-key-file", str(file))) as cairn:
        url = base_url(cairn)
        assert "authorization: Bearer YOUR-KEY" in cairn.read_until("content-type")
        assert httpx.get(f"{url}/v1/models", timeout=PATIENCE_S).status_code == 401
        listing = httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer k"}, timeout=PATIENCE_S)
        assert listing.status_code == 200


def test_a_key_is_no_argument_and_its_file_must_exist(tmp_path: Path):
    assert run_here(tmp_path, *SERVE, "--api-key", "k").returncode == 2
    absent = run_here(tmp_path, *SERVE, "--api-key-file", str(tmp_path / "none"))
    assert absent.returncode == 2
    assert "--api-key-file: " in absent.stderr
