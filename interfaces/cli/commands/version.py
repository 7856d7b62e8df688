"""`cairn version`: the installed version, and with `--check` the newest release. Nothing else asks for releases."""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from application.installation import DISTRIBUTION, installed_version
from domain.printable import printable
from interfaces.cli.terminal.ending import fail

TIMEOUT_S = 60

Check = Annotated[bool, typer.Option("--check", help="Ask the package index for the newest release.")]


def version(check: Check = False) -> None:
    """Show the version; with --check also the newest release, by pip or uv and the index that they are set up for."""
    typer.echo(f"cairn {installed_version()}")
    if not check:
        return
    newest = _newest()
    if newest == installed_version():
        typer.echo("this is the newest release")
    else:
        typer.echo(f"the newest release is {newest}; to install it: {upgrade_command(sys.prefix)}")


def _newest() -> str:
    """The newest release on the index. Ends the command if there is none, or it cannot be asked."""
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", DISTRIBUTION]
        newest = _output(pip).partition("(")[2].partition(")")[0]  # NAME (VERSION), on its first line
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "-"]
        newest = _output(command, DISTRIBUTION).strip().partition("==")[2]
    else:
        fail("there is neither pip nor uv here to ask the package index with")
    return printable(newest) if newest else fail(f"the package index has no release of {DISTRIBUTION}")


def _output(command: list[str], stdin: str = "") -> str:
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(f"{command[0]}: {error}")
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        fail(f"the package index did not name a release of {DISTRIBUTION}: {printable(said[-1])}")
    return done.stdout


def upgrade_command(prefix: str) -> str:
    """The command that upgrades an installation in the environment `prefix`."""
    parts = prefix.split("/")
    if "libexec" in parts:
        return f"brew upgrade {DISTRIBUTION}"
    if parts[-3:-1] == ["uv", "tools"]:
        return f"uv tool upgrade {DISTRIBUTION}"
    return f"pipx upgrade {DISTRIBUTION}" if parts[-2:-1] == ["venvs"] else f"pip install --upgrade {DISTRIBUTION}"
