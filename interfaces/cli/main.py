"""The `cairn` command. Modules of commands import heavy libraries inside the command, so that help is instant."""

import faulthandler
import os
import signal
import sys
import threading
from pathlib import Path

import typer

from application.installation import installed_version
from domain.setup.service_file import AGENT_LOG
from interfaces.cli.commands import (
    cache,
    cache_requests,
    config,
    doctor,
    keys,
    launch,
    logs_explain,
    models,
    plan,
    quantize,
    resident,
    run,
    serve,
    service,
    show,
    status,
    version,
)
from interfaces.cli.terminal.ending import USAGE, leave

app = typer.Typer(
    name="cairn",
    help="An LLM inference server on MLX that never computes a prompt twice.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes and the type of every flag
)
app.command("serve")(serve.serve)
app.command("run")(run.run)
app.command("plan")(plan.plan)
app.command("quantize")(quantize.quantize)
app.command("doctor")(doctor.doctor)
app.command("launch")(launch.launch)
app.command("status")(status.status)
app.command("ps")(resident.ps)
app.command("stop")(resident.stop)
app.command("show")(show.show)
app.command("version")(version.version)
app.add_typer(models.models_app, name="models")
app.add_typer(config.config_app, name="config")
app.add_typer(keys.keys_app, name="keys")
cache.cache_app.command("explain")(cache_requests.explain)
cache.cache_app.command("warm")(cache_requests.warm)
app.add_typer(cache.cache_app, name="cache")
app.add_typer(service.service_app, name="service")
app.add_typer(logs_explain.logs_app, name="logs")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cairn {installed_version()}")
        raise typer.Exit


@app.callback()
def cairn(
    _version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """An LLM inference server on MLX that never computes a prompt twice."""


_OTHERS = 0o022
"""The permission bits removed from created files, the cache folder above all: no other user may write to them, whatever
the umask."""


def main() -> None:
    """The entry point. A crash in native code, and SIGUSR1, write every thread's stack to stderr."""
    faulthandler.enable()
    os.umask(os.umask(_OTHERS) | _OTHERS)
    if sys.platform != "win32":
        faulthandler.register(signal.SIGUSR1)
    log = os.environ.pop(AGENT_LOG, "")
    if log:
        from adapters.system.user_service import bound_log

        bound_log(Path(log))
    try:
        app(prog_name="cairn")
    except SystemExit as end:
        if log and end.code == USAGE:  # launchd starts what has failed again, every ten seconds
            typer.echo("cairn: it is not started again: change the settings, then: cairn service install", err=True)
            end.code = 0
        has_threads = "mlx.core" in sys.modules or threading.active_count() > 1
        if has_threads and (end.code is None or isinstance(end.code, int)):
            leave(end.code or 0)
        raise
