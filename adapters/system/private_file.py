"""Files that hold prompts or secrets: readable only by their owner from the first byte on unless the caller names
another mode, and either whole or absent."""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from errno import EEXIST
from pathlib import Path
from tempfile import mkstemp
from typing import BinaryIO


@contextmanager
def private_file(path: Path, mode: int = 0o600) -> Generator[BinaryIO]:
    """Yields a new file that takes the name `path` when the block succeeds, and is removed when it fails.

    Raises OSError; also if the name is taken by something other than a file, so that nothing is written through a link.
    """
    _refuse_other_things(path)
    handle, name = mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_secret(path: Path, max_bytes: int) -> bytes:
    """Returns the content of a file that only its owner may use. Raises OSError, and ValueError for anything else."""
    # Non-blocking: opening a pipe would wait for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("is not a file")
        if mode & 0o077:
            raise ValueError(f"can be used by others than its owner (mode {stat.S_IMODE(mode):04o}); chmod 600 it")
        return stream.read(max_bytes)


def _refuse_other_things(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise OSError(EEXIST, "there is something of that name that is not a file")
