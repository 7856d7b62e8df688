"""How fast a folder's disk is, by writing a file and reading it back. It tells whether a store there pays off."""

import errno
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Bytes a second, sequential. Writing includes the fsync; reading bypasses the page cache where the system can."""

    write_bytes_s: float
    read_bytes_s: float


def measure_disk_speed(folder: Path, size_bytes: int = 64 * 2**20) -> DiskSpeed:
    """Blocks for as long as the disk takes; leaves nothing behind. Raises OSError where it cannot write."""
    chunk = os.urandom(_CHUNK_BYTES)  # a disk that compresses must not look faster than it is
    num_chunks = max(1, size_bytes // _CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        started = time.perf_counter()
        for _ in range(num_chunks):
            if file.write(chunk) != len(chunk):
                raise OSError(errno.ENOSPC, "no room to measure the disk", str(folder))
        os.fsync(file.fileno())
        written = time.perf_counter()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        buffer = bytearray(_CHUNK_BYTES)
        reading = time.perf_counter()
        while file.readinto(buffer):
            pass
        done = time.perf_counter()
    total = num_chunks * _CHUNK_BYTES
    return DiskSpeed(total / max(written - started, 1e-9), total / max(done - reading, 1e-9))


__all__ = ("DiskSpeed", "measure_disk_speed")
