"""Corrections of estimated peaks, remembered by model: one small JSON file beside the remembered weight digests.

    {"<digest> <runtime>, <arithmetic>": [factor, largest_bytes, num_measured], ...}

The key is what makes a peak comparable: the model by content, and what computes it. Trouble with the file is not an
error; what is not to be believed counts as not there.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import cast

from domain.memory.correction import LEAST, MOST, PeakCorrection

_NAME = "memory-peaks.json"
_MAX_REMEMBERED = 256


def recall(memory_dir: Path | None, key: str) -> PeakCorrection:
    """What was learnt of this model; nothing yet when nobody knows."""
    return _read(memory_dir).get(key, PeakCorrection()) if memory_dir is not None else PeakCorrection()


def remember(memory_dir: Path | None, key: str, correction: PeakCorrection) -> None:
    """Keep it for the next start."""
    if memory_dir is None:
        return
    known = _read(memory_dir)
    known.pop(key, None)
    kept = [*known.items(), (key, correction)][-_MAX_REMEMBERED:]
    told = {name: [each.factor, each.largest_bytes, each.num_measured] for name, each in kept}
    try:
        memory_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=memory_dir, delete=False) as file:
            json.dump(told, file)
        os.replace(file.name, memory_dir / _NAME)
    except OSError:  # it is learnt again
        return


def _read(memory_dir: Path) -> dict[str, PeakCorrection]:
    try:
        found = json.loads((memory_dir / _NAME).read_text())
    except (OSError, ValueError):
        return {}
    entries = cast(dict[str, object], found) if isinstance(found, dict) else {}
    return {key: known for key, value in entries.items() if (known := _correction(value)) is not None}


def _correction(value: object) -> PeakCorrection | None:
    if not isinstance(value, list) or len(cast(list[object], value)) != 3:
        return None
    factor, largest, count = cast(list[object], value)
    if not isinstance(factor, float) or not LEAST <= factor <= MOST:
        return None
    if not (isinstance(largest, int) and isinstance(count, int) and largest >= 0 and count >= 0):
        return None
    return PeakCorrection(factor, largest, count)


__all__ = ("recall", "remember")
