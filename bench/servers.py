"""Servers to measure: Cairn in this process with its events recorded, and peers as processes of their own."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from application.events import Event
from application.settings import Settings

START_TIMEOUT_S = 180


@dataclass
class EventLog:
    """An EventSink that keeps everything; times are on the same monotonic clock as the client's."""

    events: list[Event] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if type(event).__name__ == name]


@contextmanager
def cairn_in_process(settings: Settings, log: EventLog) -> Iterator[str]:
    """Serve on an event loop of its own thread; yields the base URL once the default model is loaded."""
    from interfaces.composition.service import build_service
    from interfaces.http.server import HttpServer

    server = HttpServer(settings.server)
    started = threading.Event()
    failure: list[BaseException] = []

    async def serve() -> None:
        service = build_service(settings, extra_sinks=(log,))
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


@contextmanager
def peer(arguments: list[str], health_path: str, log_path: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run `python -m ARGUMENTS --port FREE` until the block ends; yields its base URL once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url + health_path, process)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the peer ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"{url} did not answer")
