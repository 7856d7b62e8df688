"""A small file system of its own, to be filled: what a store does there cannot be told from a large one's end."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

import pytest


@contextmanager
def small_volume(folder: Path, size_bytes: int) -> Generator[Path]:
    """Skips the test where it cannot be mounted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root on Linux")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def leave_free(volume: Path, num_bytes: int) -> None:
    """Fill a volume with ballast, or take some away."""
    ballast = volume / "ballast"
    ballast.unlink(missing_ok=True)
    ballast.write_bytes(bytes(max(0, disk_usage(volume).free - num_bytes)))
