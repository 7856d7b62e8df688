"""How commands fail: one line on stderr and a status. 2: used wrongly (settings included), 1: it did not work."""

from typing import NoReturn

import typer

USAGE = 2
FAILED = 1


def fail(message: str, status: int = FAILED) -> NoReturn:
    typer.echo(f"cairn: {message}", err=True)
    raise typer.Exit(status)
