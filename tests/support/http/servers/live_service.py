"""The service as it ships, wired by the container, on a real socket: what a user's client talks to."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from application.settings import Settings
from interfaces.composition.engine_entry import new_event_loop
from interfaces.composition.service import Service, build_service
from interfaces.http.front.server import HttpServer
from tests.support.http.servers.quick_uvicorn import stop_quickly
from tests.support.patience import PATIENCE_S

stop_quickly()


@dataclass
class LiveService:
    service: Service
    base_url: str


@contextmanager
def running(server: HttpServer, serve: Callable[[Callable[[str], None]], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """`serve` on an event loop of its own thread, from when it has called what it is given until the block ends.

    Raises what `serve` raised before that.
    """
    started, problems = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(serve(lambda _url: started.set()))
        except BaseException as error:
            problems.append(error)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=run, name="http")
    thread.start()
    try:
        assert started.wait(PATIENCE_S), "the server did not start"
        if problems:
            raise AssertionError("the server did not start") from problems[0]
        yield
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def live_service(settings: Settings, **overrides: object) -> Iterator[LiveService]:
    """Serve until the block ends; the default model is loaded when it begins. `overrides`: as for build_service."""
    server = HttpServer(settings.server)
    service = build_service(settings, **overrides)

    async def serve(started: Callable[[str], None]) -> None:
        try:
            await service.start()
            await service.ready()
            await server.serve(service.app, started, service.container.requests().cut_off)
        finally:
            server.close()
            assert await service.stop(PATIENCE_S), "the compute thread did not end"

    with running(server, serve):
        yield LiveService(service, server.base_url)
