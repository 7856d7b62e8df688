"""A store on disk for tests, the faults that it reported, and a small file system to fill."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import disk_usage

import pytest

from adapters.fake.environment import FakeClock
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.zstd.codec import ZstdStateCodec
from application.events import StoreFault
from tests.support.telemetry.recording import RecordingEvents

PAUSE_S = 60.0


def open_store(
    path: Path, events: RecordingEvents | None = None, clock: FakeClock | None = None, **options: object
) -> LmdbBlockStore:
    """`options`: of LmdbOptions; the quota is 32 MiB without one."""
    chosen = LmdbOptions(**{"quota_bytes": 32 << 20, "pause_s": PAUSE_S, **options})  # type: ignore[arg-type]
    return LmdbBlockStore(path, chosen, ZstdStateCodec(), events or RecordingEvents(), clock or FakeClock())


def faults(events: RecordingEvents) -> list[str]:
    """Returns the kinds of the faults, in order."""
    return [event.kind for event in events.of(StoreFault)]


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
