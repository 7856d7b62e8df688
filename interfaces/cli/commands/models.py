"""`cairn models`: the models that can be served without a download."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import typer

from interfaces.cli.terminal.options import AsJson, Backend, ModelDirs, model_flags, settings_with


def models(model_dir: ModelDirs = None, backend: Backend = None, as_json: AsJson = False) -> None:
    """List the models that can be served without a download."""
    from interfaces.composition.backends import model_repository

    settings = settings_with(model_flags(None, None, model_dir, backend)).settings
    if settings.model.hub_cache == "auto":  # this command is not a client of a server
        settings = replace(settings, model=replace(settings.model, hub_cache="on"))
    found = model_repository(settings).list()
    if as_json:
        listing = [
            {
                "id": source.id,
                "path": source.path,
                "owned_by": source.owned_by,
                "created": source.created_s,
                "default": source.id == settings.model.default,
            }
            for source in found
        ]
        typer.echo(json.dumps(listing, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "from", "changed", box=None, pad_edge=False, header_style="bold")
    table.add_column("folder", overflow="fold")
    for source in found:
        name = f"{source.id} (default)" if source.id == settings.model.default else source.id
        table.add_row(name, source.owned_by, f"{datetime.fromtimestamp(source.created_s, UTC):%Y-%m-%d}", source.path)
    Console().print(table)
