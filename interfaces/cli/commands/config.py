"""`cairn config`: the settings, their origins, and the path of the file."""

import json
import os

import typer

from interfaces.cli.terminal.options import AsJson, settings_with

config_app = typer.Typer(help="Show the settings and where they come from.", no_args_is_help=True)


@config_app.command("show")
def show(
    origin: bool = typer.Option(False, "--origin", help="Also show the source of each value."), as_json: AsJson = False
) -> None:
    """Show the value of every setting, or unset; secrets only as set or unset."""
    from adapters.config.loader import config_file, shown_settings

    loaded = settings_with({})
    found = shown_settings(loaded.settings, loaded.origins, str(config_file(os.environ)))
    rows = [(one.path, one.value, one.source or one.origin.value) for one in found]
    if as_json:
        typer.echo(json.dumps({path: {"value": value, "origin": source} for path, value, source in rows}, indent=2))
        return
    width = max(len(path) for path, _, _ in rows)
    for path, value, source in rows:
        line = f"{path:{width}}  {_as_text(value)}"
        typer.echo(f"{line:{width + 26}}  {source}" if origin else line)


@config_app.command("path")
def path() -> None:
    """Show the configuration file's path, whether or not it exists."""
    from adapters.config.loader import config_file

    typer.echo(str(config_file(os.environ)))


def _as_text(value: object) -> str:
    if value in (None, "", "unset"):
        return "unset"
    return "set" if value == "set" else json.dumps(value, ensure_ascii=False)
