"""The `cairn` command as a process of its own, in an empty home, watched line by line."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from interfaces.cli.main import app
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]

_DROPPED = ("CAIRN_", "XDG_", "OTEL_")


def environment(home: Path, **variables: str) -> dict[str, str]:
    """This process's, without anybody's settings, with `home` as the home directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    return (
        kept | {"HOME": str(home), "OTEL_SDK_DISABLED": "true", "COLUMNS": "200", "PYTHONUNBUFFERED": "1"} | variables
    )


def command(*arguments: str, module: str = "interfaces.cli") -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def run_cairn(home: Path, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run to the end; stdin is always a pipe."""
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=environment(home, **variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def run_here(home: Path, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, for commands that end as soon as they were answered: to start another one and import
    everything takes it half a second. Raises what a process would die of."""
    wanted = environment(home, **variables)
    changed: dict[str, str | None] = {**dict.fromkeys(os.environ.keys() - wanted.keys()), **wanted}
    result = CliRunner().invoke(app, arguments, input=stdin, env=changed)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return subprocess.CompletedProcess(arguments, result.exit_code, result.stdout, result.stderr)


class CairnProcess:
    """A running command. Lines of stdout and stderr come in one stream, in the order they were written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.seen: list[str] = []
        self._reader = threading.Thread(target=self._read, name="cairn-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def read_until(self, text: str) -> str:
        """The first line that holds `text`; an AssertionError if the process ends or falls silent before."""
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE_S)
            except queue.Empty:
                line = None
            assert line is not None, f"no {text!r} in:\n{''.join(self.seen)}"
            self.seen.append(line)
            if text in line:
                return line

    def read_to_end(self) -> None:
        """Into `seen`, of a process that ends."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self.seen.append(line)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit status, once it ended."""
        return self._process.wait(PATIENCE_S)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def cairn_process(
    home: Path, arguments: Sequence[str], *, module: str = "interfaces.cli", **variables: str
) -> Iterator[CairnProcess]:
    """`module`: what is run in place of the command."""
    process = CairnProcess(
        subprocess.Popen(
            command(*arguments, module=module),
            cwd=ROOT,
            env=environment(home, **variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    )
    try:
        yield process
    finally:
        process.close()


def base_url(cairn: CairnProcess) -> str:
    """The address in the banner of `serve`, which comes when the model is loaded."""
    found = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
    assert found
    return found[1]


__all__ = ("PATIENCE_S", "CairnProcess", "base_url", "cairn_process", "command", "environment", "run_cairn", "run_here")
