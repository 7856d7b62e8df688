"""`cairn serve`: the HTTP server, until a signal stops it."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from application.settings import Settings
from interfaces.cli.terminal.ending import USAGE, fail
from interfaces.cli.terminal.options import (
    ApiKey,
    Backend,
    Dtype,
    KvBits,
    Model,
    ModelDirs,
    model_flags,
    parse_tokens,
    settings_with,
)

if TYPE_CHECKING:
    from adapters.config.loader import LoadedSettings
    from application.settings import ServerSettings


_DEFAULT = Settings()

Host = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help=f"Address to listen on; any but loopback needs a key. Default: {_DEFAULT.server.host}.",
    ),
]
Port = Annotated[
    int | None,
    typer.Option(metavar="NUMBER", help=f"Port to listen on; 0 takes a free one. Default: {_DEFAULT.server.port}."),
]
Name = Annotated[
    str | None, typer.Option("--name", metavar="NAME", help="A further name by which clients may ask for MODEL.")
]
Context = Annotated[
    str | None, typer.Option(metavar="TOKENS", help="Limit of prompt and answer: 32k. Default: the model's own.")
]
Store = Annotated[
    str | None,
    typer.Option(metavar="DIR|off", help="Folder of the prefix store, or off. Default: ~/.cache/cairn/store."),
]
NoStore = Annotated[bool, typer.Option("--no-store", help="As --store off.")]
StoreQuota = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Limit of the store on disk: 16GiB, 50%. Default: a fifth of the free space."),
]
HotTier = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Limit of the hot tier in memory: 2GiB. Default: 10% of the memory limit."),
]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE|auto",
        help="Memory limit of the engine, weights included: 24GiB, 60%. Default: what is free, less a tenth.",
    ),
]
MaxBatch = Annotated[
    int | None, typer.Option(metavar="NUMBER", help=f"Sequences decoded at once. Default: {_DEFAULT.engine.max_batch}.")
]
Queue = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help=f"Requests that may wait; more are refused with 503. Default: {_DEFAULT.engine.queue}.",
    ),
]
Exact = Annotated[
    bool | None,
    typer.Option("--exact/--no-exact", help="Reuse only what is bit-identical to recomputing. Default: --no-exact."),
]
McpConfig = Annotated[
    str | None,
    typer.Option("--mcp-config", metavar="FILE", help="A file of tool servers in the common form, mcpServers."),
]
LogLevel = Annotated[
    str | None,
    typer.Option(metavar="LEVEL", help=f"debug, info, warning or error. Default: {_DEFAULT.server.log_level}."),
]
LogFormat = Annotated[
    str | None, typer.Option(metavar="FORMAT", help=f"plain or json. Default: {_DEFAULT.server.log_format}.")
]


def serve(
    model: Model = None,
    dtype: Dtype = None,
    host: Host = None,
    port: Port = None,
    api_key: ApiKey = None,
    model_dir: ModelDirs = None,
    name: Name = None,
    context: Context = None,
    kv_bits: KvBits = None,
    store: Store = None,
    no_store: NoStore = False,
    store_quota: StoreQuota = None,
    hot_tier: HotTier = None,
    memory: Memory = None,
    max_batch: MaxBatch = None,
    queue: Queue = None,
    exact: Exact = None,
    mcp_config: McpConfig = None,
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
        "model.context_length": ("--context", None if context is None else parse_tokens(context)),
        "model.kv_bits": ("--kv-bits", kv_bits),
        "engine.memory": ("--memory", memory),
        "engine.max_batch": ("--max-batch", max_batch),
        "engine.queue": ("--queue", queue),
        "store.quota": ("--store-quota", store_quota),
        "store.hot_tier": ("--hot-tier", hot_tier),
        "cache.exact": ("--exact", exact),
        "mcp.config": ("--mcp-config", None if mcp_config is None else os.path.abspath(os.path.expanduser(mcp_config))),
    }
    if no_store and store is not None:
        fail("--no-store and --store contradict each other", USAGE)
    flags |= _store_flags("off" if no_store else store)
    loaded = settings_with(flags)
    if name is not None:
        loaded = settings_with(flags | {"server.aliases": ("--name", [name, *loaded.settings.server.aliases])})
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
    except AddressUnavailable as error:
        fail(f"{error}{_running_there(loaded.settings.server)}")
    except InvalidKeys as error:
        fail(str(error))
    if not outcome.is_clean:
        typer.echo("cairn: the engine did not stop in time", err=True)
        os._exit(1)
    if outcome.problem:
        fail(outcome.problem)


def _running_there(settings: "ServerSettings") -> str:
    """What runs at an address that is taken, as the end of a message; empty where it is no Cairn."""
    import asyncio

    from domain.host_name import url_of
    from interfaces.cli.client.running_server import NoAnswer, RunningServer
    from interfaces.http.native.health import EngineBody

    server = RunningServer(url_of(settings.host, settings.port))  # without the key, which another program must not get
    try:
        server.understood(asyncio.run(server.ask("/health/engine", timeout_s=2.0)), EngineBody)
    except NoAnswer:
        return ""
    return "; a Cairn answers there: cairn status shows it"
