"""The running service: one container, started and stopped in order."""

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from application.ports.engine import Engine
from application.services.text_side.models.model_finder import ServedModel
from application.services.text_side.models.model_pool import ModelPool
from application.settings import Settings
from domain.errors import DomainError
from domain.ids import ModelId
from interfaces.composition.cache import CLOSE_TIMEOUT_S
from interfaces.composition.container import Container
from interfaces.composition.token_side import SWITCH_INTERVAL_S

if TYPE_CHECKING:
    from litestar import Litestar

STOP_TIMEOUT_S = 10.0
"""The time that the engine may take to end its step. The whole stop must be shorter than `TimeoutStopSec=` in
deploy/cairn.service."""

_logger = logging.getLogger("cairn")


class Service:
    """The service without a socket. `app` is the HTTP side; `cairn run` and tests call the use cases directly."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.settings: Settings = container.settings()
        self.engine: Engine = container.engine()
        self.pool: ModelPool = container.pool()
        self._tasks: list[asyncio.Task[None]] = []
        self._app: Litestar | None = None

    @property
    def app(self) -> "Litestar":
        """The ASGI application; built on first use, so that a service without HTTP never imports it."""
        if self._app is None:
            from interfaces.composition.http import build_app

            self._app = build_app(self.container)
        return self._app

    async def start(self) -> None:
        """Starts the engine and begins to load the default model; the service is ready once that is loaded."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        logging.getLogger().addHandler(self.container.recent_log())
        self.engine.start(self.container.requests().receive)
        watch = self.container.watch()
        watch.connect(asyncio.get_running_loop().call_soon_threadsafe)
        watch.start()
        reports = self.container.reports()
        self._tasks = [asyncio.create_task(self._load_default()), asyncio.create_task(reports.run())]

    async def ready(self) -> ServedModel:
        """Waits for the default model. Raises the error of its load."""
        served = await self.pool.acquire(ModelId(self.settings.model.default))
        self.pool.release(served)
        return served

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> bool:
        """Stops everything that was started; returns False if the engine did not end in time."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        tool_servers = self.container.tool_servers()
        closing = asyncio.ensure_future(tool_servers.close()) if tool_servers is not None else None
        self.pool.close()
        self.container.hub_models().close()
        self.container.quantise().close()
        self.container.change_settings().close()
        self.container.encoder().close()
        self.container.grammars().close()
        stopped = await self.engine.stop(timeout_s)
        if closing is not None:
            await asyncio.gather(closing, return_exceptions=True)
        await asyncio.to_thread(self.container.watch().stop)
        await asyncio.to_thread(self.container.documents().close, CLOSE_TIMEOUT_S)
        await asyncio.to_thread(self.container.telemetry().shutdown)
        await asyncio.to_thread(self.container.request_log().close)
        logging.getLogger().removeHandler(self.container.recent_log())
        return stopped

    async def _load_default(self) -> None:
        """Loads the default model, then the pinned ones."""
        try:
            await self.ready()
        except DomainError as error:
            _logger.error("the default model %s is not served: %s", self.settings.model.default, error.message)
        for name in (name for name, table in self.settings.models.items() if table.pin):
            try:
                await self.pool.pin(ModelId(name))
            except DomainError as error:
                _logger.error("the pinned model %s is not served: %s", name, error.message)


def build_service(settings: Settings, **overrides: object) -> Service:
    """Builds a service. `overrides`: container provider names to the objects to use instead (see Container)."""
    from dependency_injector import providers

    container = Container(settings=providers.Object(settings))
    for name, value in overrides.items():
        provider = container.providers[name]
        provider.override(providers.Object(value))  # pyright: ignore[reportUnknownMemberType]
    return Service(container)
