"""Proxies and routers with the configurations of deploy/fleet, in front of servers of a test."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.http.servers.fake_service import wait_until
from tests.support.patience import PATIENCE_S
from tests.support.processes.processes import ROOT
from tests.support.processes.servers.redis_server import free_port

FLEET = ROOT / "deploy/fleet"
NAMES = ("cairn-1:8000", "cairn-2:8000", "cairn-3:8000")


ADMIN_KEY = "for-the-router"
"""What a router asks for its own routes, where it can."""

ROUTERS = ("vllm-router", "sglang-router")


class Proxy:
    """A running proxy on `base_url`. `metrics_url`: a router's own metrics."""

    def __init__(self, kind: str, command: Sequence[str], folder: Path, port: int, metrics_port: int = 0) -> None:
        self.kind = kind
        self.folder = folder
        self.base_url = f"http://127.0.0.1:{port}"
        self.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
        self._log = folder / f"{kind}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)

    def is_up(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with suppress(httpx.TransportError):
            if self.kind in ROUTERS:
                return len(self.healthy()) == len(NAMES)
            return httpx.get(f"{self.base_url}/health/ready").status_code == 200
        return False

    def workers(self) -> list[dict[str, Any]]:
        """A router's servers, as it sees them."""
        answer = httpx.get(f"{self.base_url}/workers", headers={"authorization": f"Bearer {ADMIN_KEY}"})
        answer.raise_for_status()
        return list(answer.json()["workers"])

    def healthy(self) -> set[str]:
        """Addresses of the servers that a router sends requests to."""
        return {str(one["url"]) for one in self.workers() if one["is_healthy"]}

    def command(self, line: str) -> str:
        """Returns HAProxy's answer to a command on its socket."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self.folder / "admin.sock"))
            admin.sendall(f"{line}\n".encode())
            return b"".join(iter(lambda: admin.recv(65536), b"")).decode()

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)


def executable(kind: str) -> str | None:
    """On the PATH, or where Debian has it."""
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    return os.environ.get(variable_of(kind)) or shutil.which(kind, path=search)


def variable_of(kind: str) -> str:
    return f"CAIRN_{kind.upper().replace('-', '_')}"


@contextmanager
def proxy(kind: str, servers: Sequence[str], folder: Path, *options: str) -> Iterator[Proxy]:
    """`servers`: three addresses, in the place of those in the configuration. `options`: behind a router's own."""
    found = executable(kind)
    if found is None:
        pytest.skip(f"no {kind} ({variable_of(kind)} names one)")
    port, metrics_port = free_port(), free_port()
    name = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}.get(kind, f"{kind}.sh")
    text = (FLEET / name).read_text()
    for placeholder, address in zip(NAMES, servers, strict=True):
        assert placeholder in text
        text = text.replace(placeholder, address)
    text = text.replace("/tmp/haproxy.sock", str(folder / "admin.sock")).replace("/tmp/nginx.pid", str(folder / "pid"))
    assert "8080" in text
    for placeholder, own in (("--port 8080", port), ("--prometheus-port 29000", metrics_port)):
        assert placeholder in text or kind not in ROUTERS
        text = text.replace(placeholder, f"{placeholder.split()[0]} {own}")
    text = text.replace("bind :8080", f"bind 127.0.0.1:{port}").replace("listen 8080", f"listen 127.0.0.1:{port}")
    if kind == "nginx":  # its folders for bodies are those of its package
        own = "".join(f"    {one}_temp_path {folder}/{one};\n" for one in BODIES)
        text = text.replace("http {\n", f"http {{\n{own}", 1)
    (folder / name).write_text(text)
    config = str(folder / name)
    commands = {"haproxy": [found, "-db", "-f", config], "nginx": [found, "-g", "daemon off;", "-c", config]}
    command = commands.get(
        kind, ["env", f"{variable_of(kind)}={found}", f"ROUTER_ADMIN_KEY={ADMIN_KEY}", "sh", config, *options]
    )
    one = Proxy(kind, command, folder, port, metrics_port)
    try:
        wait_until(one.is_up, f"{kind} to serve")
        yield one
    finally:
        one.end()


BODIES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
