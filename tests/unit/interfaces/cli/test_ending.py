"""The exit of a `cairn` process."""

import subprocess
import sys

import pytest

LIFE = """
import atexit, sys, threading
from interfaces.cli import main

def command(prog_name):
    if {has_thread}:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    raise SystemExit(1)

atexit.register(print, "the interpreter shut down")
main.app = command
main.main()
"""


@pytest.mark.parametrize("has_thread", [True, False])
def test_an_interpreter_that_has_threads_left_is_not_shut_down(has_thread: bool) -> None:
    """A daemon thread that wakes up while the interpreter shuts down may crash it."""
    life = LIFE.format(has_thread=has_thread)
    ended = subprocess.run([sys.executable, "-c", life], capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout == ("" if has_thread else "the interpreter shut down\n")
