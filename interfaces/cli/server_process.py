"""One server in this process, from its socket to its last thread, and what became of it."""

import asyncio
import os
import signal
from dataclasses import dataclass

import typer

from adapters.config.loader import LoadedSettings
from adapters.config.locations import config_file
from domain.byte_size import format_bytes
from domain.errors import DomainError
from interfaces.cli.banner import banner
from interfaces.cli.loading import wait_for_model
from interfaces.cli.machine_facts import describe_computing
from interfaces.cli.stop_signals import StopSignals
from interfaces.composition.memory import describe_limits
from interfaces.composition.service import Service, build_service
from interfaces.composition.store import quota_bytes, store_dir
from interfaces.http.server import HttpServer


@dataclass(frozen=True, slots=True)
class Outcome:
    """`problem` is empty for a server that was asked to stop. `is_clean`: every thread has ended."""

    problem: str
    is_clean: bool


async def serve_until_stopped(loaded: LoadedSettings) -> Outcome:
    """Serve until a signal, or until the default model turns out not to load. Raises AddressUnavailable,
    and InvalidKeys."""
    settings = loaded.settings
    server = HttpServer(settings.server)
    signals = StopSignals(server.stop)
    typer.echo(f"loading {settings.model.default}; listening on {server.base_url}")
    computing = await asyncio.to_thread(describe_computing, settings)
    service = build_service(settings, origins=loaded.origins)
    memory = describe_limits(service.container.memory())
    facts = [("device", computing), ("memory", memory), ("data", _data_fact(service)), ("config", _config_fact())]
    app = service.app
    if settings.server.key_file is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, service.container.keys().look_now)
    announcing: asyncio.Task[str] | None = None
    if signals.is_stopping:
        server.close()
        return Outcome("", is_clean=True)

    def started(base_url: str) -> None:
        nonlocal announcing
        if signals.is_stopping:
            server.stop()
        announcing = asyncio.create_task(_announce(service, server, base_url, facts))

    await service.start()
    try:
        await server.serve(app, started)
    finally:
        if announcing is not None:
            announcing.cancel()
            await asyncio.wait([announcing])
        is_clean = await service.stop()
    problem = "" if announcing is None or announcing.cancelled() else announcing.result()
    return Outcome(problem, is_clean)


async def _announce(service: Service, server: HttpServer, base_url: str, facts: list[tuple[str, str]]) -> str:
    """Print the banner once the model is there; or stop the server and return why it is not."""
    try:
        served = await wait_for_model(service, typer.echo)
    except DomainError as error:
        server.stop()
        return error.message
    notes = [("note", served.source.note)] if served.source.note else []
    typer.echo(banner(service.settings, base_url, served.description, served.tokenizer, [*notes, *facts]))
    return ""


def _data_fact(service: Service) -> str:
    store = service.settings.store
    if store.kind != "lmdb":
        return "in memory only, gone when this ends" if store.kind == "memory" else "none: the store is off"
    folder = store_dir(store)
    if service.container.store() is None:
        return f"none: the store in {folder} could not be opened"
    return f"{folder}, at most {format_bytes(quota_bytes(store, folder))}"


def _config_fact() -> str:
    file = config_file(os.environ)
    return str(file) if file.exists() else f"{file} (none yet)"


__all__ = ("Outcome", "serve_until_stopped")
