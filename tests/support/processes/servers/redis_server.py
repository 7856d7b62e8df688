"""A real redis-server on loopback, where one is installed: CAIRN_REDIS_SERVER names it, or it is on the PATH."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

REDIS = os.environ.get("CAIRN_REDIS_SERVER") or shutil.which("redis-server") or shutil.which("valkey-server")

needs_redis = pytest.mark.skipif(REDIS is None, reason="no redis-server on the PATH (CAIRN_REDIS_SERVER names one)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A server of its own folder. `options`: as on its command line, `--maxmemory 8mb`."""

    def __init__(self, folder: Path, *options: str, port: int | None = None) -> None:
        self.folder = folder
        self.port = free_port() if port is None else port
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        assert REDIS is not None
        plain = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self.folder))
        command = [REDIS, "--port", str(self.port), *plain, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._process.stdout is not None
        lines: list[bytes] = []
        for line in self._process.stdout:  # ends when the server does
            lines.append(line)
            if b"Ready to accept connections" in line:
                return
        raise AssertionError(b"".join(lines).decode())

    def send(self, number: signal.Signals) -> None:
        """SIGSTOP: it hangs, with its connections open; SIGCONT: it goes on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisServer]:
    server = RedisServer(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
