"""`cairn cache`: what the store holds, and its upkeep. Reading works beside a running server, writing does not."""

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from application.events import Event, StoreFault
from domain.byte_size import format_bytes
from interfaces.cli.failure import fail
from interfaces.cli.options import AsJson, settings_with

if TYPE_CHECKING:
    from adapters.lmdb.block_store import LmdbBlockStore
    from application.ports.block_store import NamespaceUsage
    from application.use_cases.export_store import TransferReport

cache_app = typer.Typer(help="Look at the store, check it, empty it, carry it elsewhere.", no_args_is_help=True)

StoreDir = Annotated[
    str | None, typer.Option("--store", metavar="DIR", help="The store's folder. Default: store.dir in the settings.")
]
OfModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Only this model's, or a namespace by its first digits.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
File = Annotated[Path, typer.Argument(metavar="FILE")]


@cache_app.command()
def stats(store: StoreDir = None, as_json: AsJson = False) -> None:
    """Show how much is stored, in how many records, of what quota."""
    with _opened(store, read_only=True) as opened:
        usage = opened.usage()
    _tell(
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
    """List what is stored by namespace: one for each model, tenant and way of computing."""
    from application.use_cases.walk_store import chosen

    with _opened(store, read_only=True) as opened:
        spaces = chosen(opened, model)
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
def verify(
    store: StoreDir = None,
    payloads: Annotated[bool, typer.Option(help="Read every stored byte and check it, too.")] = True,
    as_json: AsJson = False,
) -> None:
    """Recount everything and check every checksum. Status 1 when something is wrong."""
    with _opened(store, read_only=True) as opened, _working("verifying", as_json):
        report = opened.check_integrity(payloads=payloads)
    _tell({"records": report.num_records, "problems": list(report.problems)}, as_json)
    if report.problems:
        raise typer.Exit(1)


@cache_app.command()
def clear(store: StoreDir = None, model: OfModel = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove everything, or everything of one model."""
    from application.use_cases.clear_store import clear_store
    from application.use_cases.walk_store import chosen

    with _opened(store, read_only=False) as opened:
        total = _num_records(chosen(opened, model))
        if total and not yes:
            typer.confirm(f"Remove {total} records?", abort=True, err=True)
        with _progress("removing", total, as_json) as advance:
            removed = clear_store(opened, model, advance)
    _tell({"removed": removed}, as_json)


@cache_app.command()
def compact(store: StoreDir = None, as_json: AsJson = False) -> None:
    """Give freed space back to the volume. Needs room for a copy of what is stored."""
    from application.ports.block_store import StoreOpenError

    with _opened(store, read_only=False) as opened, _working("compacting", as_json):
        try:
            report = opened.compact()
        except StoreOpenError as failure:
            fail(str(failure))
    _tell({"before_bytes": report.before_bytes, "after_bytes": report.after_bytes}, as_json)


@cache_app.command("export")
def export_records(file: File, store: StoreDir = None, model: OfModel = None, as_json: AsJson = False) -> None:
    """Write records to a file that `import` reads, on this machine or another."""
    from adapters.zstd.codec import ZstdStateCodec
    from application.use_cases.export_store import export_store
    from application.use_cases.walk_store import chosen

    partial = file.with_name(file.name + ".part")
    with _opened(store, read_only=True) as opened:
        total = _num_records(chosen(opened, model))
        try:
            with partial.open("wb") as stream, _progress("exporting", total, as_json) as advance:
                report = export_store(opened, stream, ZstdStateCodec(), model, advance)
            partial.replace(file)
        except OSError as failure:
            partial.unlink(missing_ok=True)
            fail(f"{file} cannot be written: {failure.strerror}")
    _tell_transfer(report, as_json)


@cache_app.command("import")
def import_records(file: File, store: StoreDir = None, as_json: AsJson = False) -> None:
    """Add the records of an exported file; what is present stays."""
    from adapters.zstd.codec import ZstdStateCodec
    from application.use_cases.export_format import InvalidExport
    from application.use_cases.export_store import import_store

    try:
        with (
            file.open("rb") as stream,
            _opened(store, read_only=False) as opened,
            _progress("importing", None, as_json) as advance,
        ):
            report = import_store(opened, stream, ZstdStateCodec(), advance)
    except OSError as failure:
        fail(f"{file} cannot be read: {failure.strerror}")
    except InvalidExport as failure:
        fail(f"{file}: {failure}")
    _tell_transfer(report, as_json)


class _FaultPrinter:
    """An EventSink that tells faults as they happen."""

    def emit(self, event: Event) -> None:
        if isinstance(event, StoreFault):
            typer.echo(f"cairn: {event.kind}: {event.message}", err=True)


@contextmanager
def _opened(directory: str | None, *, read_only: bool) -> "Generator[LmdbBlockStore]":
    from adapters.system.clock import SystemClock
    from application.ports.block_store import StoreOpenError
    from interfaces.composition.store import open_lmdb_store

    settings = settings_with({"store.dir": ("--store", directory)}).settings.store
    try:
        store = open_lmdb_store(settings, _FaultPrinter(), SystemClock(), read_only=read_only)
    except StoreOpenError as failure:
        fail(str(failure))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _working(what: str, quiet: bool) -> Generator[None]:
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with console.status(what):
        yield


@contextmanager
def _progress(what: str, total: int | None, quiet: bool) -> Generator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, quiet=quiet), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def _num_records(spaces: "Sequence[NamespaceUsage]") -> int:
    return sum(space.num_blocks + space.num_snapshots for space in spaces)


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


def _tell_transfer(report: "TransferReport", as_json: bool) -> None:
    skipped = dict(report.skipped)
    _tell({"namespaces": report.num_namespaces, "records": report.num_records, "skipped": skipped}, as_json)


def _tell(facts: dict[str, object], as_json: bool) -> None:
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
        elif isinstance(value, dict):
            counts = cast(dict[str, int], value)
            typer.echo(f"{label}: {', '.join(f'{count} {reason}' for reason, count in counts.items()) or 'none'}")
        elif isinstance(value, int) and name.endswith("_bytes"):
            typer.echo(f"{label}: {format_bytes(value)}")
        else:
            typer.echo(f"{label}: {value or 0}")


__all__ = ("cache_app",)
