"""`cairn serve`: the HTTP server, until a signal stops it."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from interfaces.cli.terminal.ending import fail
from interfaces.cli.terminal.options import ApiKey, Backend, Dtype, Model, ModelDirs, model_flags, settings_with

if TYPE_CHECKING:
    from adapters.config.loader import LoadedSettings


Host = Annotated[str | None, typer.Option(help="Address to listen on; any but loopback needs a key.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")]
Store = Annotated[str | None, typer.Option(metavar="DIR|off", help="Folder of the prefix store, or off.")]
StoreQuota = Annotated[str | None, typer.Option(metavar="SIZE", help="Limit of the store on disk: 16GiB, 50%.")]
HotTier = Annotated[str | None, typer.Option(metavar="SIZE", help="Limit of the hot tier in memory: 2GiB, 10%.")]
Memory = Annotated[
    str | None, typer.Option(metavar="SIZE|auto", help="Memory limit of the engine, weights included: 24GiB, 60%.")
]
MaxBatch = Annotated[int | None, typer.Option(help="Sequences decoded at once.")]
Queue = Annotated[int | None, typer.Option(help="Requests that may wait; more are refused with 503.")]
Exact = Annotated[
    bool | None, typer.Option("--exact/--no-exact", help="Reuse only what is bit-identical to recomputing.")
]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]
LogFormat = Annotated[str | None, typer.Option(help="plain or json.")]


def serve(
    model: Model = None,
    dtype: Dtype = None,
    host: Host = None,
    port: Port = None,
    api_key: ApiKey = None,
    model_dir: ModelDirs = None,
    store: Store = None,
    store_quota: StoreQuota = None,
    hot_tier: HotTier = None,
    memory: Memory = None,
    max_batch: MaxBatch = None,
    queue: Queue = None,
    exact: Exact = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    backend: Backend = None,
) -> None:
    """Serve models over HTTP, with the APIs of OpenAI, Anthropic and Ollama."""
    from interfaces.cli.terminal.logs import configure_logging

    flags = model_flags(model, dtype, model_dir, backend) | {
        "server.host": ("--host", host),
        "server.port": ("--port", port),
        "server.api_key": ("--api-key-file", api_key),
        "server.log_level": ("--log-level", log_level),
        "server.log_format": ("--log-format", log_format),
        "engine.memory": ("--memory", memory),
        "engine.max_batch": ("--max-batch", max_batch),
        "engine.queue": ("--queue", queue),
        "store.quota": ("--store-quota", store_quota),
        "store.hot_tier": ("--hot-tier", hot_tier),
        "cache.exact": ("--exact", exact),
    }
    loaded = settings_with(flags | _store_flags(store))
    configure_logging(loaded.settings.server.log_level, loaded.settings.server.log_format)
    if other := loaded.overridden.get("store.kind"):
        typer.echo(f"--store {store} decides store.kind, not {other}")
    _run(loaded)


def _store_flags(store: str | None) -> dict[str, tuple[str, object]]:
    """The flags of `--store`: `off` disables the store, a folder enables it in spite of other sources."""
    if store is None:
        return {}
    if store.lower() == "off":
        return {"store.kind": ("--store", "off")}
    return {"store.kind": ("--store", "lmdb"), "store.dir": ("--store", store)}


def _run(loaded: "LoadedSettings") -> None:
    import asyncio

    from adapters.system.machine import raise_open_files
    from interfaces.composition.engine_entry import engine_child, new_event_loop

    raise_open_files()  # before the child is started, which inherits the limit
    child = engine_child(loaded.settings.engine.backend)
    with suppress(OSError):  # the next try reports the error
        child.launch()  # imports at the same time as this process
    from domain.errors import InvalidKeys
    from interfaces.cli.server.server_process import serve_until_stopped
    from interfaces.http.front.server import AddressUnavailable

    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            outcome = runner.run(serve_until_stopped(loaded, child))
    except (AddressUnavailable, InvalidKeys) as error:
        fail(str(error))
    if not outcome.is_clean:
        typer.echo("cairn: the engine did not stop in time", err=True)
        os._exit(1)
    if outcome.problem:
        fail(outcome.problem)
