"""HAProxy and nginx with the configurations of deploy/fleet, in front of servers of a test."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.support.http.servers.fake_service import wait_until
from tests.support.patience import PATIENCE_S
from tests.support.processes.processes import ROOT
from tests.support.processes.servers.redis_server import free_port

FLEET = ROOT / "deploy/fleet"
NAMES = ("cairn-1:8000", "cairn-2:8000", "cairn-3:8000")


class Proxy:
    """A running proxy on `base_url`."""

    def __init__(self, kind: str, command: Sequence[str], folder: Path, port: int) -> None:
        self.kind = kind
        self.folder = folder
        self.base_url = f"http://127.0.0.1:{port}"
        self._process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def is_up(self) -> bool:
        assert self._process.poll() is None, self._process.stderr and self._process.stderr.read()
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.base_url}/health/ready").status_code == 200
        return False

    def command(self, line: str) -> str:
        """Returns HAProxy's answer to a command on its socket."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self.folder / "admin.sock"))
            admin.sendall(f"{line}\n".encode())
            return b"".join(iter(lambda: admin.recv(65536), b"")).decode()

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        if self._process.stderr is not None:
            self._process.stderr.close()


def executable(kind: str) -> str | None:
    """On the PATH, or where Debian has it."""
    search = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
    return os.environ.get(f"CAIRN_{kind.upper()}") or shutil.which(kind, path=search)


@contextmanager
def proxy(kind: str, servers: Sequence[str], folder: Path) -> Iterator[Proxy]:
    """`servers`: three addresses, in the place of those in the configuration."""
    found = executable(kind)
    if found is None:
        pytest.skip(f"no {kind} (CAIRN_{kind.upper()} names one)")
    port = free_port()
    name = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}[kind]
    text = (FLEET / name).read_text()
    for placeholder, address in zip(NAMES, servers, strict=True):
        assert placeholder in text
        text = text.replace(placeholder, address)
    text = text.replace("/tmp/haproxy.sock", str(folder / "admin.sock")).replace("/tmp/nginx.pid", str(folder / "pid"))
    assert "8080" in text
    text = text.replace("bind :8080", f"bind 127.0.0.1:{port}").replace("listen 8080", f"listen 127.0.0.1:{port}")
    if kind == "nginx":  # its folders for bodies are those of its package
        own = "".join(f"    {one}_temp_path {folder}/{one};\n" for one in BODIES)
        text = text.replace("http {\n", f"http {{\n{own}", 1)
    (folder / name).write_text(text)
    config = str(folder / name)
    command = [found, "-db", "-f", config] if kind == "haproxy" else [found, "-g", "daemon off;", "-c", config]
    one = Proxy(kind, command, folder, port)
    try:
        wait_until(one.is_up, f"{kind} to serve")
        yield one
    finally:
        one.end()


BODIES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
