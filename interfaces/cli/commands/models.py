"""`cairn models`: the models that can be served without a download, and the hub's cache: pull into it, remove from
it."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from domain.byte_size import format_bytes
from domain.errors import DomainError, ModelNotFound
from domain.ids import ModelId
from domain.printable import printable
from domain.setup.download_room import disk_problem, memory_problem
from interfaces.cli.terminal.columns import columns
from interfaces.cli.terminal.ending import FAILED, USAGE, fail
from interfaces.cli.terminal.options import AsJson, Backend, ModelDirs, Yes, model_flags, settings_with
from interfaces.cli.terminal.progress import progress

if TYPE_CHECKING:
    from application.ports.model_hub import DownloadSize
    from application.settings import Settings

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
    from adapters.huggingface.hub import HuggingFaceHub

    id, settings, hub = _hub_id(name), _settings({}), HuggingFaceHub()
    try:
        size = hub.size(id)
        if size.missing_bytes:
            _check_room(id, size, settings, yes)
        with progress(f"pulling {id}", size.missing_bytes or None, quiet=False) as bar:
            folder = hub.download(id, lambda now: bar.reach(now.done_bytes, now.total_bytes))
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


def _check_room(id: ModelId, size: "DownloadSize", settings: "Settings", yes: bool) -> None:
    """Ends the command if the model cannot be served or the disk has no room, and asks if memory has none."""
    from interfaces.composition.backends import why_type_is_unserved
    from interfaces.composition.memory import limits_here

    if why := why_type_is_unserved(settings, size.model_type):
        fail(f"{id} cannot be served, so it is not downloaded: {why}")
    if problem := disk_problem(id, size.missing_bytes, size.free_bytes, size.cache):
        fail(problem)
    typer.echo(f"{id}: {format_bytes(size.missing_bytes)} to download into {size.cache}", err=True)
    limits = limits_here(settings)
    problem = memory_problem(size.weight_bytes, limits.hard_bytes if limits is not None else None)
    if problem and not yes:
        typer.echo(f"cairn: {problem}", err=True)
        typer.confirm("Download it all the same?", abort=True, err=True)
