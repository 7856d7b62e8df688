"""A server of this process's own, on a free port of the loopback with a key that only this process knows."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from application.settings import ServerSettings
from interfaces.cli.client.running_server import RunningServer
from interfaces.cli.server.loading import wait_for_model
from interfaces.composition.service import Service
from interfaces.http.front.server import HttpServer


def own_settings() -> ServerSettings:
    """The settings of its address; they must be those of the service."""
    return ServerSettings(host="127.0.0.1", port=0, api_key=secrets.token_urlsafe(32))


@asynccontextmanager
async def own_server(service: Service) -> AsyncGenerator[RunningServer]:
    """Starts a service and its server, loads the default model, and stops both in any case. Raises DomainError."""
    server = HttpServer(service.settings.server)
    started = asyncio.Event()
    await service.start()
    serving = asyncio.ensure_future(server.serve(service.app, lambda _url: started.set()))
    serving.add_done_callback(lambda _: started.set())  # also when it fails to start
    try:
        await wait_for_model(service)
        await started.wait()
        if serving.done():
            serving.result()
        yield RunningServer(server.base_url, service.settings.server.api_key)
    finally:
        server.stop(grace_s=0)
        await asyncio.wait([serving])
        await service.stop()
