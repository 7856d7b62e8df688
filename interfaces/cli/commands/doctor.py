"""`cairn doctor`: what this machine is to Cairn, and what is wrong with it."""

import json

import typer

from interfaces.cli.terminal.failure import FAILED
from interfaces.cli.terminal.options import AsJson, Backend, Dtype, Model, ModelDirs, model_flags, settings_with


def doctor(
    model: Model = None,
    dtype: Dtype = None,
    model_dir: ModelDirs = None,
    backend: Backend = None,
    as_json: AsJson = False,
) -> None:
    """Check device, BLAS, model, limits, data folder and settings; exit status 1 if something is wrong."""
    from interfaces.cli.commands.checks import run_checks

    settings = settings_with(model_flags(model, dtype, model_dir, backend)).settings
    checks = list(run_checks(settings))
    is_well = not any(check.problem for check in checks)
    if as_json:
        found = [{"name": check.name, "found": check.found, "problem": check.problem or None} for check in checks]
        typer.echo(json.dumps({"ok": is_well, "checks": found}, indent=2))
    else:
        for check in checks:
            typer.echo(f"{'!' if check.problem else ' '} {check.name:<11} {check.found}")
            if check.problem:
                typer.echo(f"{'':14}{check.problem}")
        typer.echo("nothing is wrong" if is_well else "lines with ! want attention")
    if not is_well:
        raise typer.Exit(FAILED)
