"""What the commands of `cairn cache` share: the store they open, progress, and how they tell what they found."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, cast

import typer

from application.events import Event, StoreFault
from domain.byte_size import format_bytes
from interfaces.cli.terminal.failure import fail
from interfaces.cli.terminal.options import settings_with

if TYPE_CHECKING:
    from adapters.lmdb.block_store import LmdbBlockStore
    from application.ports.block_store import NamespaceUsage, StoreAdministration
    from domain.prefix.namespace_choice import NamespaceChoice

StoreDir = Annotated[
    str | None, typer.Option("--store", metavar="DIR", help="The store's folder. Default: store.dir in the settings.")
]
OfModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Only this model's, or a namespace by its first digits.")
]


class FaultPrinter:
    """An EventSink that tells faults as they happen."""

    def emit(self, event: Event) -> None:
        if isinstance(event, StoreFault):
            typer.echo(f"cairn: {event.kind}: {event.message}", err=True)


@contextmanager
def opened(directory: str | None, *, read_only: bool) -> "Generator[LmdbBlockStore]":
    """The store; ends the command when it cannot be opened."""
    from application.ports.block_store import StoreOpenError

    try:
        store = open_store(directory, read_only=read_only)
    except StoreOpenError as failure:
        fail(str(failure))
    try:
        yield store
    finally:
        store.close()


def open_store(directory: str | None, *, read_only: bool) -> "LmdbBlockStore":
    """Raises StoreOpenError."""
    from adapters.system.clock import SystemClock
    from interfaces.composition.store import open_lmdb_store

    settings = settings_with({"store.dir": ("--store", directory)}).settings.store
    return open_lmdb_store(settings, FaultPrinter(), SystemClock(), read_only=read_only)


@contextmanager
def working(what: str, quiet: bool) -> Generator[None]:
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    with console.status(what):
        yield


def chosen(store: "StoreAdministration", choice: "NamespaceChoice") -> "Sequence[NamespaceUsage]":
    return [usage for usage in store.usage().namespaces if choice.includes(usage.info)]


def num_records(spaces: "Sequence[NamespaceUsage]") -> int:
    return sum(space.num_blocks + space.num_snapshots for space in spaces)


def tell(facts: dict[str, object], as_json: bool) -> None:
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
            typer.echo(f"{label}: {'none' if value is None else value or 0}")
