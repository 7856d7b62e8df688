"""Verify, then write: LMDB reads damaged pages safely and edits them with abandon.

A flipped bit in a page of a tree or in the list of free pages can make a later write overrun memory. So before the
first write to a file that was there already, every page of its structure (not its payloads) is walked by py-lmdb's own
verifier, which never hands the file to LMDB. Large files are walked by a process of their own, because the verifier is
plain Python and would take the interpreter from everybody else.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from adapters.lmdb.faults import Damaged

_SMALL_BYTES = 8 << 20
_TIMEOUT_S = 600.0
_PROGRAM = """
import os, sys
from lmdb import verify
if hasattr(os, "nice"):
    os.nice(5)
try:
    problems = verify.verify(sys.argv[1], subdir=False)
except verify.VerifyError as failure:
    problems = [str(failure)]
sys.stdout.write("\\n".join(problems))
"""


def verify_structure(data: Path) -> None:
    """Raises Damaged, naming the first problem. The file must not be written to meanwhile."""
    is_small = data.stat().st_size <= _SMALL_BYTES
    problems = _here(data) if is_small or not sys.executable else _elsewhere(data)
    if problems:
        raise Damaged(f"{len(problems)} problems in the structure of the database, the first: {problems[0]}")


def _here(data: Path) -> list[str]:
    verifier: Any = import_module("lmdb.verify")  # ships without types
    try:
        return [str(problem) for problem in verifier.verify(str(data), subdir=False)]
    except verifier.VerifyError as failure:
        return [str(failure)]


def _elsewhere(data: Path) -> list[str]:
    command = [sys.executable, "-I", "-c", _PROGRAM, str(data)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return _here(data)
    return done.stdout.splitlines()


__all__ = ("verify_structure",)
