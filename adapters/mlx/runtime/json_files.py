"""JSON from files of unknown origin: checked numbers, and a small file of entries that survives a restart.

JSON as Python reads it has NaN, infinities and integers of thousands of digits, which raise where they are converted or
printed.
"""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard, cast

MAX_COUNT = 2**63 - 1


def is_count(value: object) -> TypeGuard[int]:
    """True if a value is a whole number from 0 to MAX_COUNT."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def is_number(value: object) -> TypeGuard[int | float]:
    """True if a value is a finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_entries(path: Path) -> dict[str, object]:
    """Returns the unchecked entries of a JSON file by name; empty if the file cannot be read. Blocks on the disk."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast(dict[str, object], found) if isinstance(found, dict) else {}


def write_entries(path: Path, entries: Mapping[str, object], most: int) -> None:
    """Replaces the file by the last `most` of these entries. Errors are ignored: what the file holds can be computed
    again. Of two processes that write at once, one loses its change. Blocks on the disk."""
    kept = dict(list(entries.items())[-most:])
    written: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
            written = Path(file.name)
            json.dump(kept, file)
        os.replace(written, path)
    except OSError:
        if written is not None:
            with suppress(OSError):
                written.unlink(missing_ok=True)
