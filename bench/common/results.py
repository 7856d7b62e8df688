"""The results of a bench: one JSON object a line, each written when it is known, so that a process that ends early
leaves what it measured. The first line of a run has the machine, the versions and the commit (or BENCH_COMMIT, for a
copy without git). Lines are added to those in the file.
"""

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_VERSIONS = ("mlx", "mlx-cuda-13", "mlx-cuda-12", "mlx-lm", "numpy", "lmdb", "zstandard", "llguidance")
_PATIENCE_S = 10


class Results:
    """`path` None: nothing is written."""

    def __init__(self, path: Path | None, bench: str, **facts: Any) -> None:
        self._path = path
        if path is not None:
            self.add("run", bench=bench, arguments=sys.argv[1:], **where(), **facts)

    def add(self, what: str, **figures: Any) -> None:
        """Adds a line: its kind, and its figures."""
        if self._path is None:
            return
        line = json.dumps({"what": what, **figures}, default=str)
        with self._path.open("a", encoding="utf-8") as file:  # one write, and in the file once it returns
            file.write(line + "\n")


def where() -> dict[str, Any]:
    """The machine, the versions and the code. Touches no device, and never fails for what is missing."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "device": device_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: found for name in _VERSIONS if (found := _version(name))},
        "commit": commit(),
    }


def device_name() -> str:
    """The name that the driver reports; the processor's without a driver. Read without MLX, which would take memory."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    return _output(query) or f"cpu, {platform.machine()}"


def commit(root: Path = ROOT) -> str:
    """`dirty`: with changes that are in no commit."""
    given = os.environ.get("BENCH_COMMIT")
    if given:
        return given
    if not (found := _output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"])):
        return "unknown"
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{found}, dirty" if changed else found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _output(command: list[str]) -> str:
    """Empty where it fails, hangs or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip().replace("\n", "; ")
