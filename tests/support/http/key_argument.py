"""A key as commands take it: in a file."""

import atexit
import tempfile
from pathlib import Path

_FOLDER = tempfile.TemporaryDirectory(prefix="cairn-keys-")
atexit.register(_FOLDER.cleanup)


def key_argument(key: str) -> tuple[str, str]:
    file = Path(_FOLDER.name) / key
    file.write_text(f"{key}\n")
    return "--api-key-file", str(file)
