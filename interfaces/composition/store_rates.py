"""How fast the disk of a store is and how fast its state is decoded: measured once for the volume that it lies on, and
remembered in its folder.
"""

import json
import os
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import Any

from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.private_files import read_private, replace_durably
from adapters.lmdb.volume import volume_id
from adapters.system.disk_speed import measure_disk_speed
from adapters.zstd.rates import measure_decode_rate
from application.ports.block_store import StoreOpenError
from domain.codec_choice import StoreRates

_MAX_THREADS = 8
_PROBE_BYTES = 16 << 20


def num_threads() -> int:
    """For encoding and decoding, a record each: half of the processors, so that a fast disk or a restart's whole prefix
    in memory does not wait for two of them, and as many are left to compute."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2
    return max(2, min(_MAX_THREADS, usable // 2))


def store_rates(path: Path) -> StoreRates | None:
    """Measured where they are not known for this volume; None where it cannot be written to."""
    if (known := remembered_rates(path)) is not None:
        return known
    directory = StoreDirectory(path)
    try:
        directory.prepare()
        disk = measure_disk_speed(path, _PROBE_BYTES)
        rates = StoreRates(disk.read_bytes_s, measure_decode_rate() * num_threads(), disk.write_bytes_s)
        remember_rates(path, rates)
    except (OSError, StoreOpenError):
        return None
    return rates


def remember_rates(path: Path, rates: StoreRates) -> None:
    """Raises OSError."""
    text = json.dumps({**asdict(rates), "volume": volume_id(path)})
    replace_durably(StoreDirectory(path).rates, text.encode())


def remembered_rates(path: Path) -> StoreRates | None:
    """None where nothing was measured yet, or not all of it, or on another volume: a folder may have been copied. Nor
    is believed what no disk can be."""
    try:
        known: dict[str, Any] = json.loads(read_private(StoreDirectory(path).rates))
        if known.pop("volume") != volume_id(path):
            return None
        rates = StoreRates(**{name: float(rate) for name, rate in known.items()})
        return rates if all(0 < rate < inf for rate in known.values()) else None
    except (OSError, StoreOpenError, ValueError, TypeError, LookupError, OverflowError, AttributeError):
        return None


__all__ = ("num_threads", "remember_rates", "remembered_rates", "store_rates")
