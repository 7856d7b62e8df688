"""A command on a terminal of its own: what it draws, keys pressed, and whether the terminal is left as it was."""

import os
import pty
import queue
import signal
import subprocess
import termios
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.cli_process import ROOT, command, environment
from tests.support.patience import PATIENCE_S


class Terminal:
    """`drawn`: everything the command wrote so far, control codes included."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self._process = process
        self._master = master
        self._slave = slave
        self._pieces: queue.Queue[bytes] = queue.Queue()
        self.drawn = ""
        self.modes = termios.tcgetattr(slave)
        self._reader = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._reader.start()

    def read_until(self, text: str) -> None:
        """Wait for `text` beyond what was read before."""
        start = len(self.drawn)
        while text not in self.drawn[start:]:
            try:
                self.drawn += self._pieces.get(timeout=PATIENCE_S).decode(errors="replace")
            except queue.Empty:
                raise AssertionError(f"no {text!r} in:\n{self.drawn[start:]}") from None

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(PATIENCE_S)

    def is_as_before(self) -> bool:
        """Whether keys are echoed and lines are edited again."""
        return termios.tcgetattr(self._slave) == self.modes

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65_536)
            except OSError:
                return
            self._pieces.put(piece)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
        os.close(self._slave)
        self._reader.join(PATIENCE_S)
        os.close(self._master)


@contextmanager
def terminal(home: Path, arguments: Sequence[str], **variables: str) -> Generator[Terminal]:
    """80 columns and 24 lines, unless variables say otherwise."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command(*arguments),
        cwd=ROOT,
        env=environment(home, **{"TERM": "xterm", "COLUMNS": "80", "LINES": "24"} | variables),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    shown = Terminal(process, master, slave)
    try:
        yield shown
    finally:
        shown.close()


__all__ = ("Terminal", "terminal")
