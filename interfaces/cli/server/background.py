"""A server in the background: `cairn serve` in a session of its own, which outlives the command that started it."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from application.installation import child_environment
from domain.printable import printable
from interfaces.cli.client.running_server import NoAnswer, RunningServer
from interfaces.cli.terminal.logs import MAX_CHARS

POLL_INTERVAL_S = 0.3
POLL_TIMEOUT_S = 5.0


def start_server(server: RunningServer, arguments: Sequence[str], log: Path) -> int | None:
    """Starts a server and shows its log until its default model is served, however long a download takes. Returns its
    process id; None where another one took the address first. Raises NoAnswer if it ends before. `server`: its address.
    `log`: its log, readable by this user only. If interrupted, it is stopped."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(output, 0o600)  # also of one that was there
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "interfaces.cli", "serve", *arguments],
            env=child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)
    try:
        _wait(server, process, log)
    except BaseException:
        process.terminate()  # no effect once it has ended
        raise
    return None if process.poll() is not None else process.pid


def _wait(server: RunningServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    with log.open(encoding="utf-8", errors="replace") as lines:
        while True:
            has_ended = process.poll() is not None
            for line in lines:
                typer.echo(f"  {printable(line.rstrip(), MAX_CHARS)}", err=True)
            try:
                asyncio.run(server.ask("/health/ready", timeout_s=POLL_TIMEOUT_S))
                return
            except NoAnswer:
                if has_ended:
                    message = f"the server ended with status {process.returncode} before it was ready; its log: {log}"
                    raise NoAnswer(message) from None
            time.sleep(POLL_INTERVAL_S)
