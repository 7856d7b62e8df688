"""A small JSON file of entries by name that survives a restart, the most recent last.

Trouble with the file is not an error: what it holds can be found out again. Several processes may write it: each puts a
whole file in its place, and of two at once one is forgotten. Blocks as long as the disk takes.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import cast


def recalled(path: Path) -> dict[str, object]:
    """The entries of the file, unchecked; empty where it cannot be read."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast(dict[str, object], found) if isinstance(found, dict) else {}


def keep(path: Path, entries: Mapping[str, object], most: int) -> None:
    """The last `most` of these and nothing else, for the next start."""
    kept = dict(list(entries.items())[-most:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
            written = Path(file.name)
    except OSError:
        return
    try:
        written.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(written, path)
    except OSError:
        _remove(written)  # a disk that is full would fill up with them


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
