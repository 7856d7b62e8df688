"""`cairn cache`: the content of the store, and its upkeep. Reading works beside a running server, writing does not."""

import json
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, cast

import typer

from application.events import Event, StoreFault
from domain.byte_size import format_bytes
from domain.printable import printable
from interfaces.cli.terminal.ending import FAILED, USAGE, fail
from interfaces.cli.terminal.options import ApiKey, AsJson, Url, Yes, settings_with
from interfaces.cli.terminal.progress import Meter, progress

if TYPE_CHECKING:
    from adapters.lmdb.block_store import LmdbBlockStore
    from application.ports.block_store import NamespaceUsage, StoreAdministration
    from application.ports.document_store import DocumentStore
    from application.settings import StoreSettings
    from domain.prefix.fingerprint import NamespaceFilter
    from interfaces.http.native.cache import ClearedBody

StoreDir = Annotated[
    str | None, typer.Option("--store", metavar="DIR", help="The store's folder. Default: store.dir in the settings.")
]
OfModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Only this model, or a namespace by its first digits.")
]
Salt = Annotated[
    str | None,
    typer.Option("--salt", metavar="SALT", help="Only requests with this cache_salt; '' for those without one."),
]
Tier = Annotated[
    str | None,
    typer.Option("--tier", metavar="hot", help="hot: only the hot tier of the running server; what is stored stays."),
]
Payloads = Annotated[bool, typer.Option(help="Also read every stored byte and check it.")]

cache_app = typer.Typer(help="List, check, compact and clear the store.", no_args_is_help=True)


class FaultPrinter:
    """An EventSink that prints faults on stderr as they happen."""

    def emit(self, event: Event) -> None:
        if isinstance(event, StoreFault):
            typer.echo(f"cairn: {event.kind}: {event.message}", err=True)


@cache_app.command()
def stats(store: StoreDir = None, as_json: AsJson = False) -> None:
    """Show the size of the store, its number of records, and its quota."""
    with _opened(store, read_only=True) as source:
        usage = source.usage()
    _report(
        {
            "quota_bytes": usage.quota_bytes,
            "stored_bytes": usage.stored_bytes,
            "raw_bytes": sum(space.raw_bytes for space in usage.namespaces),
            "namespaces": len(usage.namespaces),
            "blocks": sum(space.num_blocks for space in usage.namespaces),
            "snapshots": sum(space.num_snapshots for space in usage.namespaces),
        },
        as_json,
    )


@cache_app.command("ls")
def list_namespaces(store: StoreDir = None, model: OfModel = None, as_json: AsJson = False) -> None:
    """List the store's namespaces: one for each model, tenant and configuration of the engine."""
    from domain.prefix.fingerprint import NamespaceFilter

    with _opened(store, read_only=True) as source:
        spaces = _chosen(source, NamespaceFilter(model))
    if as_json:
        typer.echo(json.dumps([_described(space) for space in spaces], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("namespace")
    table.add_column("model")
    for name in ("blocks", "snapshots", "raw", "stored"):
        table.add_column(name, justify="right")
    for space in spaces:
        sizes = format_bytes(space.raw_bytes), format_bytes(space.stored_bytes)
        numbers = str(space.num_blocks), str(space.num_snapshots)
        table.add_row(space.info.namespace.hex()[:12], space.info.model, *numbers, *sizes)
    Console().print(table)


@cache_app.command()
def verify(store: StoreDir = None, payloads: Payloads = True, as_json: AsJson = False) -> None:
    """Recount everything, check every checksum, and name records that the disk cannot read. Exits with status 1 when
    there is a problem."""
    with _opened(store, read_only=True) as source, _bytes_of(source, "verifying", as_json) as bar:
        report = source.check_integrity()
        problems = [*report.problems, *(source.check_payloads(bar.advance) if payloads else ())]
    _report({"records": report.num_records, "problems": problems}, as_json)
    if problems:
        raise typer.Exit(FAILED)


@cache_app.command()
def compact(store: StoreDir = None, as_json: AsJson = False) -> None:
    """Returns freed space to the volume. Needs space for a copy of the live records."""
    from application.ports.block_store import StoreOpenError

    with _opened(store, read_only=False) as target, _bytes_of(target, "compacting", as_json) as bar:
        try:
            report = target.compact(bar.advance)
        except StoreOpenError as failure:
            fail(str(failure))
    _report({"before_bytes": report.before_bytes, "after_bytes": report.after_bytes}, as_json)


@cache_app.command()
def clear(
    store: StoreDir = None,
    model: OfModel = None,
    salt: Salt = None,
    tier: Tier = None,
    url: Url = None,
    api_key: ApiKey = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove everything, or everything of a model or a tenant, for good, with stored responses. A running server also
    clears its memory. Exits with status 1 when bytes may be left in the files of the store."""
    from application.ports.block_store import OpenFailure, StoreOpenError
    from domain.prefix.fingerprint import NamespaceFilter

    if tier is not None:
        if tier != "hot" or (model, salt, store) != (None, None, None):
            fail("--tier takes hot, and neither --store nor --model nor --salt beside it", USAGE)
        _confirm(None, yes)
        cleared = _ask_server(url, api_key, {"tier": tier})
        _report({"removed_from_memory": cleared.hot_records, "removed_memory_bytes": cleared.hot_bytes}, as_json)
        return
    choice = NamespaceFilter.of(model, salt, settings_with({}).settings.cache.salt)
    try:
        if url is not None:
            _confirm(None, yes)
            removed = _cleared_by_server(url, api_key, model, salt)
        else:
            with closing(_open(store, read_only=False)) as target:
                removed = _cleared(target, _store_settings(store), choice, yes, as_json)
    except StoreOpenError as failure:
        if failure.failure is OpenFailure.BUSY and store is None:
            _confirm(_counted(choice), yes)
            removed = _cleared_by_server(url, api_key, model, salt)
        elif failure.failure is OpenFailure.VOLUME and choice.is_everything:
            removed = _emptied(failure, _store_settings(store), yes)
        else:
            fail(f"{failure}{'; name its server with --url' if failure.failure is OpenFailure.BUSY else ''}")
    _report(removed, as_json)
    if removed["problem"]:
        raise typer.Exit(FAILED)


def _cleared(
    target: "LmdbBlockStore", settings: "StoreSettings", choice: "NamespaceFilter", yes: bool, as_json: bool
) -> dict[str, object]:
    from rich.console import Console

    with _documents(settings) as documents:
        _confirm(_num_records(_chosen(target, choice)), yes, documents.usage().num_documents if documents else 0)
        with Console(stderr=True, quiet=as_json).status("removing"):
            report = target.erase(None if choice.is_everything else choice.includes)
            erased = documents.erase(choice) if documents else None
    problems = "; ".join(one.problem for one in (report, erased) if one is not None and one.problem)
    return {
        "removed": report.num_records,
        "removed_bytes": report.num_bytes,
        "removed_documents": erased.num_documents if erased else 0,
        "problem": problems or None,
    }


def _emptied(failure: Exception, settings: "StoreSettings", yes: bool) -> dict[str, object]:
    """Removes everything from a store that cannot be opened, which removing its files does not need."""
    from application.ports.block_store import StoreOpenError
    from interfaces.composition.store import empty_store, store_dir

    if not store_dir(settings).is_dir():
        fail(str(failure))
    typer.echo(f"cairn: {failure}", err=True)
    _confirm(None, yes)
    with _documents(settings) as documents:
        try:
            empty_store(settings)
        except StoreOpenError as error:
            fail(str(error))
        erased = documents.erase() if documents else None
    num_documents, problem = (erased.num_documents, erased.problem) if erased else (0, "")
    return {"removed": None, "removed_bytes": None, "removed_documents": num_documents, "problem": problem or None}


def _cleared_by_server(url: str | None, api_key: str | None, model: str | None, salt: str | None) -> dict[str, object]:
    cleared = _ask_server(url, api_key, {"model": model, "salt": salt})
    return {
        "removed": cleared.records,
        "removed_bytes": cleared.bytes,
        "removed_documents": cleared.documents,
        "removed_from_memory": cleared.hot_records,
        "problem": None if cleared.problem is None else printable(cleared.problem),
    }


def _ask_server(url: str | None, api_key: str | None, choice: dict[str, str | None]) -> "ClearedBody":
    import asyncio

    from interfaces.cli.client.running_server import configured_server, needed
    from interfaces.http.native.cache import ClearedBody

    server = configured_server(url, api_key)
    with needed():
        answer = asyncio.run(server.ask("/v1/cache/clear", json.dumps(choice).encode()))
        return server.understood(answer, ClearedBody)


@contextmanager
def _opened(directory: str | None, *, read_only: bool) -> "Generator[LmdbBlockStore]":
    """Returns the store; ends the command when it cannot be opened."""
    from application.ports.block_store import StoreOpenError

    try:
        store = _open(directory, read_only=read_only)
    except StoreOpenError as failure:
        fail(str(failure))
    with closing(store):
        yield store


def _open(directory: str | None, *, read_only: bool) -> "LmdbBlockStore":
    """Opens the store. Raises StoreOpenError."""
    from adapters.system.clock import SystemClock
    from interfaces.composition.store import open_lmdb_store

    return open_lmdb_store(_store_settings(directory), FaultPrinter(), SystemClock(), read_only=read_only)


@contextmanager
def _documents(settings: "StoreSettings") -> "Generator[DocumentStore | None]":
    """Returns the documents beside the store; None if there never were any."""
    from adapters.system.clock import SystemClock
    from interfaces.composition.store import documents_file, open_documents

    if not documents_file(settings).parent.exists():
        yield None
        return
    with closing(open_documents(settings, FaultPrinter(), SystemClock())) as documents:
        yield documents


def _store_settings(directory: str | None) -> "StoreSettings":
    return settings_with({"store.dir": ("--store", directory)}).settings.store


def _chosen(store: "StoreAdministration", choice: "NamespaceFilter") -> "Sequence[NamespaceUsage]":
    return [usage for usage in store.usage().namespaces if choice.includes(usage.info)]


def _num_records(spaces: "Sequence[NamespaceUsage]") -> int:
    return sum(space.num_blocks + space.num_snapshots for space in spaces)


def _counted(choice: "NamespaceFilter") -> int | None:
    """Returns the number of chosen records in a server's store; None when it cannot be read."""
    from application.ports.block_store import StoreOpenError

    with suppress(StoreOpenError), closing(_open(None, read_only=True)) as source:
        return _num_records(_chosen(source, choice))
    return None


def _confirm(total: int | None, yes: bool, num_documents: int = 0) -> None:
    """Asks the user. `total` None: unknown. `num_documents`: the number of all documents."""
    if (total != 0 or num_documents) and not yes:
        what = "everything that is chosen" if total is None else f"{total} records"
        what += f" and those chosen of {num_documents} documents (stored responses and more)" if num_documents else ""
        typer.confirm(f"Remove {what}?", abort=True, err=True)


def _bytes_of(store: "StoreAdministration", what: str, quiet: bool) -> AbstractContextManager[Meter]:
    return progress(what, store.usage().stored_bytes, quiet=quiet)


def _described(space: "NamespaceUsage") -> dict[str, object]:
    return {
        "namespace": space.info.namespace.hex(),
        "model": space.info.model,
        "fingerprint": space.info.fingerprint,
        "blocks": space.num_blocks,
        "snapshots": space.num_snapshots,
        "raw_bytes": space.raw_bytes,
        "stored_bytes": space.stored_bytes,
    }


def _report(facts: dict[str, object], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        label = name.removesuffix("_bytes").replace("_", " ")
        if isinstance(value, list):
            lines = cast(list[str], value)
            typer.echo(f"{label}: {len(lines) or 'none'}")
            for line in lines:
                typer.echo(f"  {line}")
        elif isinstance(value, int) and name.endswith("_bytes"):
            typer.echo(f"{label}: {format_bytes(value)}")
        else:
            typer.echo(f"{label}: {'none' if value is None else value or 0}")
