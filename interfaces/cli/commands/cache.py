"""`cairn cache`: what the store holds, and its upkeep. Reading works beside a running server, writing does not."""

import json
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from domain.byte_size import format_bytes
from interfaces.cli.commands.cache_clear import clear
from interfaces.cli.commands.cache_store import OfModel, StoreDir, chosen, opened, tell
from interfaces.cli.terminal.failure import fail
from interfaces.cli.terminal.options import AsJson
from interfaces.cli.terminal.progress import Shown, Unit, progress

if TYPE_CHECKING:
    from application.ports.block_store import NamespaceUsage, StoreAdministration

cache_app = typer.Typer(help="Look at the store, check it, empty it.", no_args_is_help=True)
cache_app.command("clear")(clear)


@cache_app.command()
def stats(store: StoreDir = None, as_json: AsJson = False) -> None:
    """Show how much is stored, in how many records, and of what quota."""
    with opened(store, read_only=True) as source:
        usage = source.usage()
    tell(
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
    from domain.prefix.namespace_choice import NamespaceChoice

    with opened(store, read_only=True) as source:
        spaces = chosen(source, NamespaceChoice(model))
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
    """Recount everything and check every checksum, and name what the disk cannot read. Status 1 when something is
    wrong."""
    with opened(store, read_only=True) as source, _bytes_of(source, "verifying", as_json) as bar:
        report = source.check_integrity()
        problems = [*report.problems, *(source.check_payloads(bar.advance) if payloads else ())]
    tell({"records": report.num_records, "problems": problems}, as_json)
    if problems:
        raise typer.Exit(1)


@cache_app.command()
def compact(store: StoreDir = None, as_json: AsJson = False) -> None:
    """Give freed space back to the volume. Needs room for a copy of what is stored."""
    from application.ports.block_store import StoreOpenError

    with opened(store, read_only=False) as target, _bytes_of(target, "compacting", as_json) as bar:
        try:
            report = target.compact(bar.advance)
        except StoreOpenError as failure:
            fail(str(failure))
    tell({"before_bytes": report.before_bytes, "after_bytes": report.after_bytes}, as_json)


def _bytes_of(store: "StoreAdministration", what: str, quiet: bool) -> AbstractContextManager[Shown]:
    return progress(what, store.usage().stored_bytes, Unit.BYTES, quiet=quiet)


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
