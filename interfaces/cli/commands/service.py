"""`cairn service`: the server as a service of the user who installs it."""

import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interfaces.cli.terminal.ending import FAILED, USAGE, fail
from interfaces.cli.terminal.options import Yes, settings_with

if TYPE_CHECKING:
    from adapters.system.user_service import UserService

CARRIED = (
    "CAIRN_CONFIG", "CAIRN_BLAS", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT",
)  # fmt: skip
"""Variables that the service keeps from the shell of its installation: where things are, and no secrets."""

service_app = typer.Typer(help="Run the server as a service of your user.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model. Default: the one of the settings.")]
Print = Annotated[bool, typer.Option("--print", help="Print the service file and change nothing.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=1, max=100_000, help="Lines from the end.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines, until Ctrl-C.")]


@service_app.command()
def install(model: Model = "", yes: Yes = False, only_print: Print = False) -> None:
    """Write the service file and start the server, now and at every login."""
    from adapters.system.user_service import write_service
    from domain.errors import InvalidRequest
    from domain.setup.service_file import ServiceFacts

    settings_with({})  # a service with invalid settings would not start
    if os.path.isfile(os.path.join(folder := os.path.abspath(os.path.expanduser(model)), "config.json")):
        model = folder  # the service starts in another one
    with _manager() as service:
        try:
            carried = {name: os.environ[name] for name in CARRIED if os.environ.get(name)}
            text = service.text(ServiceFacts(_command(), model, carried))
        except InvalidRequest as error:
            fail(error.message, USAGE)
        if problem := service.problem(text):
            fail(f"the service file would be refused: {problem}")
        if only_print:
            typer.echo(text.rstrip())
            typer.echo(f"cairn: would write {service.file}", err=True)
            return
        if _current(service.file) not in (None, text) and not yes:
            typer.confirm(f"Replace {service.file}, which is a different one?", abort=True, err=True)
        _warn_of_settings()
        if _current(service.file) is None:
            _warn_of_server()
        write_service(service.file, text)
        typer.echo(f"wrote {service.file}")
        service.start()
        if problem := service.stay():
            typer.echo(f"cairn: it stops when you log out: {problem}", err=True)
    typer.echo("started; `cairn service status` and `cairn status` show it, `cairn service logs` its log")


@service_app.command()
def uninstall(yes: Yes = False) -> None:
    """Stop the service and remove its file. Models, settings and the store stay."""
    with _manager() as service:
        if _current(service.file) is None:
            fail(f"no service is installed: there is no {service.file}")
        if not yes:
            typer.confirm(f"Stop the service and remove {service.file}?", abort=True, err=True)
        service.remove()
    typer.echo(f"removed {service.file}")


@service_app.command()
def status() -> None:
    """Show whether the service is installed and runs. Exits with status 1 if it does not run."""
    with _manager() as service:
        if _current(service.file) is None:
            fail(f"no service is installed: there is no {service.file}; cairn service install writes it")
        runs, state = service.state()
    typer.echo(f"{service.file}\n{state}\n`cairn status` shows what the server does, `cairn service logs` its log")
    if not runs:
        raise typer.Exit(FAILED)


@service_app.command()
def logs(lines: Lines = 100, follow: Follow = False) -> None:
    """Show the log of the service."""
    with _manager() as service:
        command = service.log_command(lines, follow=follow)
        program = shutil.which(command[0])
        if program is None:
            fail(f"{command[0]} is not on this machine")
        os.execv(program, list(command))


@contextmanager
def _manager() -> "Generator[UserService]":
    """Returns the service manager; ends the command when it or the file system refuses."""
    from adapters.system.user_service import ServiceFailed, user_service

    try:
        yield user_service(os.environ)
    except (ServiceFailed, OSError) as why:
        fail(str(why))


def _current(file: Path) -> str | None:
    """The text of the file; None without one."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _command() -> str:
    """The path of the `cairn` command of this installation: as the PATH names it where that leads here, because such a
    name survives an upgrade. Ends the command without one."""
    own, found = Path(sys.executable).parent / "cairn", shutil.which("cairn")
    if found is not None and os.path.realpath(found) == os.path.realpath(own):
        return os.path.abspath(found)
    return str(own) if own.is_file() else fail(f"there is no command {own}: install Cairn first (docs/install.md)")


def _warn_of_settings() -> None:
    left = sorted(name for name in os.environ if name.startswith("CAIRN_") and name not in CARRIED)
    if left:
        typer.echo(f"cairn: the service does not get {', '.join(left)}: use the file of `cairn config path`", err=True)


def _warn_of_server() -> None:
    import asyncio

    from interfaces.cli.client.running_server import NoAnswer, configured_server

    server = configured_server(None, None)
    with suppress(NoAnswer):
        asyncio.run(server.ask("/health/live", timeout_s=2.0))
        typer.echo(f"cairn: a server answers at {server.url} already: the service takes over when it ends", err=True)
