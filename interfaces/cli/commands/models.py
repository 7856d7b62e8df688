"""`cairn models`: the models that can be served without a download, and the hub's cache: pull into it, remove from
it."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from domain.byte_size import format_bytes
from domain.errors import DomainError, ModelNotFound
from domain.ids import ModelId
from domain.printable import printable
from interfaces.cli.terminal.columns import columns
from interfaces.cli.terminal.ending import FAILED, USAGE, fail
from interfaces.cli.terminal.options import AsJson, Backend, ModelDirs, Yes, model_flags, settings_with
from interfaces.cli.terminal.progress import progress

if TYPE_CHECKING:
    from adapters.huggingface.hub_download import HubModel
    from application.settings import Settings

MIN_FREE_BYTES = 1 << 30
"""The space that a download leaves free."""

models_app = typer.Typer(help="List the models of this machine; pull and remove them.")

HubName = Annotated[str, typer.Argument(metavar="ORG/NAME", help="The model's id on the hub.")]


@models_app.callback(invoke_without_command=True)
def models(
    context: typer.Context, model_dir: ModelDirs = None, backend: Backend = None, as_json: AsJson = False
) -> None:
    """List the models of this machine; pull and remove them."""
    if context.invoked_subcommand is None:
        list_models(model_dir, backend, as_json)


@models_app.command("list")
def list_models(model_dir: ModelDirs = None, backend: Backend = None, as_json: AsJson = False) -> None:
    """List the models that can be served without a download.

    A line each. Into a pipe without a header, separated by tabs: name, bytes, from, changed, folder.
    """
    from interfaces.composition.backends import model_repository

    settings = _settings(model_flags(None, None, model_dir, backend))
    found = model_repository(settings).list()
    if as_json:
        listing = [
            {
                "id": source.id,
                "path": source.path,
                "owned_by": source.owned_by,
                "created": source.created_s,
                "bytes": source.file_bytes,
                "default": source.id == settings.model.default,
            }
            for source in found
        ]
        typer.echo(json.dumps(listing, indent=2))
        return
    rows = [
        (source.id, source.file_bytes, source.owned_by, f"{datetime.fromtimestamp(source.created_s, UTC):%Y-%m-%d}")
        for source in found
    ]
    if not sys.stdout.isatty():
        for row, source in zip(rows, found, strict=True):
            typer.echo("\t".join(map(str, (*row, source.path))))
        return
    default = f"{settings.model.default} (default)"
    cells = [(default if id == settings.model.default else id, format_bytes(size), *rest) for id, size, *rest in rows]
    for line in columns([("model", "weights", "from", "changed"), *cells]):
        typer.echo(line)


@models_app.command()
def pull(name: HubName, yes: Yes = False) -> None:
    """Download a model of the hub, or what is missing of it. An interrupted download is continued."""
    from adapters.huggingface.hub_cache import default_cache
    from adapters.huggingface.hub_download import download, look_up

    id, settings, cache = _hub_id(name), _settings({}), default_cache()
    try:
        found = look_up(id, cache)
        if found.missing_bytes:
            _check_room(id, found, cache, settings, yes)
        with progress(f"pulling {id}", found.missing_bytes or None, quiet=False) as bar:
            folder = download(id, cache, lambda now: bar.reach(now.done_bytes, now.total_bytes))
    except ModelNotFound as error:
        _fail_near(settings, id, error.message)
    except DomainError as error:
        fail(error.message)
    except KeyboardInterrupt:
        fail(f"interrupted; the same command continues {id}", 130)
    typer.echo(f"{id} is in {folder}\nTo serve it: cairn serve {id}")


@models_app.command("rm")
def remove(name: HubName, yes: Yes = False) -> None:
    """Remove a model from the hub's cache, for all programs that use it. Other folders are left alone."""
    from adapters.huggingface.hub_cache import default_cache, held_bytes, remove

    id, cache = _hub_id(name), default_cache()
    try:
        size = format_bytes(held_bytes(cache, id))
        if not yes:
            typer.confirm(f"Remove {id} ({size}) from {cache}?", abort=True, err=True)
        folder = remove(cache, id)
    except ModelNotFound as error:
        _fail_near(_settings({}), id, error.message)
    except OSError as error:
        fail(f"{id} cannot be removed: {error}")
    typer.echo(f"removed {folder} ({size})")


def _settings(flags: "dict[str, tuple[str, object]]") -> "Settings":
    """The settings of a command, which is not a client of a server: it sees all of the hub's cache."""
    settings = settings_with(flags).settings
    if settings.model.hub_cache == "auto":
        return replace(settings, model=replace(settings.model, hub_cache="on"))
    return settings


def _hub_id(name: str) -> ModelId:
    from adapters.huggingface.repository import is_hub_id

    if not is_hub_id(ModelId(name)):
        _fail_near(_settings({}), name, f"ORG/NAME must be a hub id, not {printable(name)!r}", USAGE)
    return ModelId(name)


def _fail_near(settings: "Settings", name: str, message: str, status: int = FAILED) -> NoReturn:
    from interfaces.composition.near_models import near_models

    fail(message + near_models(settings, name), status)


def _check_room(id: ModelId, found: "HubModel", cache: Path, settings: "Settings", yes: bool) -> None:
    """Ends the command if the disk has no room, and asks if memory has none."""
    from interfaces.composition.memory import limits_here

    missing = format_bytes(found.missing_bytes)
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.is_dir())).free
    if found.missing_bytes + MIN_FREE_BYTES > free:
        room = f"{format_bytes(free)} are free in {cache}, and {format_bytes(MIN_FREE_BYTES)} stay free"
        fail(f"{id}: {missing} are missing, but {room}: free some, or name another place in HF_HUB_CACHE")
    typer.echo(f"{id}: {missing} to download into {cache}", err=True)
    limits = limits_here(settings)
    if limits is not None and found.weight_bytes > limits.hard_bytes and not yes:
        weights, hard = format_bytes(found.weight_bytes), format_bytes(limits.hard_bytes)
        typer.echo(f"cairn: its weights take {weights}, and a server here may hold {hard}", err=True)
        typer.confirm("Download it all the same?", abort=True, err=True)
