"""`cairn run` as a process: one answer, piped input, and a chat in a terminal."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.effort import some_of
from tests.support.http.servers.held_chat import REPLY, SAID
from tests.support.processes.cli_process import PATIENCE_S, ROOT, command, environment, run_cairn, run_here

FAKE = ("--backend", "fake", "--max-tokens", "8", "--temperature", "0")


def test_a_prompt_is_answered_and_so_is_piped_input(tmp_path: Path):
    argument = run_cairn(tmp_path, "run", "fake-attention", "Hello", *FAKE)
    assert argument.returncode == 0, argument.stderr
    assert argument.stdout.strip()
    piped = run_here(tmp_path, "run", *FAKE, stdin="Hello\n")
    assert piped.stdout == argument.stdout, "greedy answers do not change"
    assert piped.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", *FAKE), "cairn: the piped input is empty"),
        (("run", "no-such-model", "Hello", *FAKE), "cairn: no model named no-such-model"),
        (("run", "fake-attention", "Hello", "--max-tokens", "0", "--backend", "fake"), "cairn: max_tokens must be"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(tmp_path: Path, arguments: tuple[str, ...], message: str):
    result = run_here(tmp_path, *arguments)
    assert result.returncode == 1
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.stderr


class Terminal:
    """The other end of a pseudo-terminal that a process has as its stdin and stdout."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = ""
        self._mark = 0

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def read_until(self, text: str) -> str:
        """What came since the last call, up to and with `text`."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen[self._mark :]:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen[self._mark :]!r}"
            try:
                self.seen += os.read(self._descriptor, 65_536).decode(errors="replace")
            except OSError:  # Linux: the process closed its end
                raise AssertionError(f"it ended before {text!r}: {self.seen!r}") from None
        start, self._mark = self._mark, self.seen.index(text, self._mark) + len(text)
        return self.seen[start : self._mark]


@contextmanager
def chat(home: Path, words: list[str]) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """`words`: the command that chats."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment(home, TERM="dumb"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(ours), process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(PATIENCE_S)
        os.close(ours)


def test_a_chat_goes_on_until_the_end_of_input(tmp_path: Path):
    with chat(tmp_path, command("run", *FAKE)) as (terminal, process):
        terminal.read_until("> ")
        terminal.type("one\n")
        terminal.read_until("one\r\n")
        first = terminal.read_until("\r\n> ")
        terminal.type("one\n")
        terminal.read_until("one\r\n")
        second = terminal.read_until("\r\n> ")
        assert first != second, "the second turn is asked with the first before it"
        terminal.type("\x04")
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("kind", some_of(["fake", "mlx"], ["fake"]))
def test_an_interrupt_cancels_the_answer_and_the_chat_goes_on(tmp_path: Path, kind: str):
    """The engine stands still in its first answer, so that nothing but the interrupt can end it."""
    os.mkfifo(pipe := tmp_path / "pipe")
    with chat(tmp_path, [sys.executable, "-m", "tests.support.http.servers.held_chat", kind, str(pipe)]) as (
        terminal,
        process,
    ):
        terminal.read_until("> ")
        terminal.type("one\n")
        terminal.read_until("one\r\n")
        if kind == "fake":
            terminal.read_until(SAID)
        with pipe.open("w"):  # opens when the engine does, on its side
            process.send_signal(signal.SIGINT)
            terminal.read_until("[cancelled]")
            terminal.read_until("> ")
        terminal.type("two\n")
        terminal.read_until("two\r\n")
        answer = terminal.read_until("\r\n> ").removesuffix("\r\n> ")
        assert answer.strip(), "the next question is answered"
        assert kind == "mlx" or answer == REPLY
        terminal.type("\x04")
        assert process.wait(PATIENCE_S) == 0
