"""Folders that backups leave out, because what they hold can be computed again: a `CACHEDIR.TAG`, which tar, restic and
borg know, and on macOS the attribute that Time Machine knows. Its snapshots would also keep every page of a store that
was rewritten since."""

import logging
import os
import plistlib
import sys
from pathlib import Path

from adapters.system.mac import MacCalls, attempt

TAG = "CACHEDIR.TAG"
_CONTENT = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# Cairn keeps here what it can compute again. Backups may leave it out: https://bford.info/cachedir/\n"
)
_ATTRIBUTE = "com.apple.metadata:com_apple_backup_excludeItem"
_VALUE = plistlib.dumps("com.apple.backupd", fmt=plistlib.FMT_BINARY)

_logger = logging.getLogger("cairn")


def exclude_from_backup(folder: Path, calls: MacCalls | None = None) -> None:
    """Marks a folder once, which is created where it is absent: a user who removed the attribute keeps the choice. A
    folder that cannot be marked is a line in the log."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / TAG, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb") as file:
            file.write(_CONTENT)
    except FileExistsError:
        return
    except OSError as error:
        _logger.info("%s cannot be marked for backups to leave it out: %s", folder, error.strerror)
        return
    if sys.platform == "darwin":
        mac = calls or MacCalls()
        attempt(
            lambda: mac.set_attribute(str(folder), _ATTRIBUTE, _VALUE), f"keep {folder} out of Time Machine's backups"
        )
