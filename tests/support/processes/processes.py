"""Python processes for tests that must survive, or kill, what they test."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


def fast_folder(fallback: Path) -> Path:
    """A folder in memory where there is one: what matters is the number of trials, not the disk."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else fallback


def start(*arguments: str, stdin: bool = False, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """`stdin`: whether it has a standard input. `environment`: in addition to the common one."""
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, **(environment or {})},
        text=True,
        stdin=subprocess.PIPE if stdin else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str], timeout_s: float) -> str:
    """Returns its output; an AssertionError with the end of its stderr when it failed."""
    try:
        output, errors = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    assert process.returncode == 0, f"status {process.returncode}: {errors[-2000:]}"
    return output
