"""Servers to measure: Cairn in this process with its events recorded, and any server as a process of its own."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from adapters.system.blas import SYSTEM_LIBRARIES, load_blas
from application.ports.event_sink import EventSink
from application.settings import Settings
from interfaces.composition.service import Service

START_TIMEOUT_S = 180


def shared_blas() -> dict[str, str]:
    """The environment that gives a peer the BLAS which this process, and every Cairn that it starts, use from now on.

    The system's, or else what MLX brings: numpy's is in place in a Cairn's own process only. Before MLX is imported.
    """
    os.environ["CAIRN_BLAS"] = SYSTEM_LIBRARIES[-1]
    path = load_blas().path
    os.environ["CAIRN_BLAS"] = path or "off"
    return {"LD_PRELOAD": path} if path else {}


@contextmanager
def cairn_in_process(
    settings: Settings, log: EventSink, prepare: Callable[[Service], object] = lambda _: None
) -> Iterator[str]:
    """Serve on an event loop of its own thread; yields the base URL once the default model is loaded. `prepare`: called
    before it is started."""
    from interfaces.composition.service import build_service
    from interfaces.http.front.server import HttpServer

    server = HttpServer(settings.server)
    started = threading.Event()
    failure: list[BaseException] = []

    async def serve() -> None:
        service = build_service(settings, extra_sinks=(log,))
        prepare(service)
        try:
            await service.start()
            await service.ready()
            await server.serve(service.app, lambda _url: started.set())
        finally:
            await service.stop()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failure.append(error)
            started.set()

    thread = threading.Thread(target=run, name="bench-server")
    thread.start()
    try:
        if not started.wait(START_TIMEOUT_S) or failure:
            raise RuntimeError("the server did not start") from (failure[0] if failure else None)
        yield server.base_url
    finally:
        server.stop()
        thread.join(60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """`python -m ARGUMENTS --host 127.0.0.1 --port FREE`, started, stopped, killed and started again on its port."""

    def __init__(
        self,
        arguments: Sequence[str],
        health_path: str,
        log_path: Path,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._arguments = list(arguments)
        self._health_path = health_path
        self._log_path = log_path
        self._python = python
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns once the server answers; raises RuntimeError with the end of its log if it does not."""
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", *self._arguments, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log,
                stderr=log,
                env=self._environment,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """Ask it to end; insist after a while."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def kill(self) -> None:
        """kill -9, of all that it started as well: an engine in a process of its own would else end in order."""
        if self._process is not None:
            started = _descendants(self._process.pid)
            self._process.kill()
            for pid in started:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def pids(self) -> list[int]:
        """The server's process and those that it started. Where there is a /proc."""
        assert self._process is not None
        return [self._process.pid, *_descendants(self._process.pid)]

    def cpu_s(self) -> float:
        """Processor time it has taken so far, all threads together. Where there is a /proc."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + self._health_path, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                time.sleep(0.2)
        self.kill()
        raise RuntimeError(f"{self._arguments} did not start:\n{self._log_path.read_text()[-2000:]}")


def _descendants(pid: int) -> list[int]:
    """Empty where there is no /proc, or no such process any more."""
    try:
        lists = [task.joinpath("children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    children = [int(child) for found in lists for child in found]
    return [found for child in children for found in (child, *_descendants(child))]
