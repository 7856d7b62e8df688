"""Files that only their owner may read, replaced whole and made durable: prompts lie in a store in clear.

Existing files are distrusted. A link, a special file and a file of another user are refused; a file of ours that others
could read is closed to them. A file is written beside its place, synced and renamed, and its folder is synced, so that
a power cut leaves the old one or the new one. Modes do not depend on the umask.
"""

import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from errno import ENOENT
from pathlib import Path
from shutil import disk_usage
from stat import S_ISLNK, S_ISREG

from application.ports.block_store import OpenFailure, StoreOpenError

FOLDER_MODE, FILE_MODE = 0o700, 0o600
_OTHERS = 0o077
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone leaves it in the disk's cache
_NETWORK = frozenset({
    "9p", "afpfs", "afs", "ceph", "cifs", "davfs", "fuse.davfs2", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "webdav",
})  # fmt: skip


def sync_file(handle: int) -> None:
    """Makes the content of a file durable. Raises OSError."""
    if _FULL_SYNC is None:
        os.fsync(handle)
        return
    try:
        fcntl.fcntl(handle, _FULL_SYNC)
    except OSError:  # a volume that does not know it
        os.fsync(handle)


def sync_folder(path: Path) -> None:
    """Makes names that were created, replaced or removed in a folder durable. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Creates a folder with its parents, durably; all that are created are private. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir(mode=FOLDER_MODE)
            folder.chmod(FOLDER_MODE)
        with suppress(PermissionError):  # a folder that may be written to and not read
            sync_folder(folder.parent)


def refuse_folder_of_others(path: Path) -> None:
    """Raises StoreOpenError for a folder of another user, or a link that neither we nor root made; and OSError."""
    link, folder = os.lstat(path), os.stat(path)
    if S_ISLNK(link.st_mode) and link.st_uid not in {0, os.geteuid()}:
        raise _refusal(f"{path} is a link that another user made (uid {link.st_uid})")
    _refuse_owner(path, folder.st_uid)


def refuse_file_of_others(path: Path) -> os.stat_result | None:
    """Returns the status of a regular file of ours; None when there is no such file. Raises StoreOpenError."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not S_ISREG(status.st_mode):
        kind = "a link" if S_ISLNK(status.st_mode) else "not a regular file"
        raise _refusal(f"{path} is {kind}; a store has regular files only: remove it")
    _refuse_owner(path, status.st_uid)
    return status


def close_to_others(path: Path, mode: int) -> bool:
    """Returns whether its mode had to be changed. By path: closing a descriptor of LMDB's lock would free it."""
    if not os.stat(path).st_mode & _OTHERS:
        return False
    os.chmod(path, mode)
    return True


def open_private(path: Path, flags: int) -> int:
    """Returns a descriptor of a regular file of ours, with one name. Raises StoreOpenError, OSError."""
    refuse_file_of_others(path)
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    try:
        status = os.fstat(handle)
        _refuse_owner(path, status.st_uid)
        if not S_ISREG(status.st_mode) or status.st_nlink != 1:
            raise _refusal(f"{path} is not a regular file, or has a second name (hard link): remove it")
        if status.st_mode & 0o777 != FILE_MODE:
            os.fchmod(handle, FILE_MODE)
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_private(path: Path, max_bytes: int = 4096) -> bytes:
    """Returns the beginning of a file of ours. Raises StoreOpenError, OSError."""
    if refuse_file_of_others(path) is None:
        raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(path))
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _refuse_owner(path, os.fstat(handle).st_uid)
        return os.read(handle, max_bytes)
    finally:
        os.close(handle)


def replace_durably(path: Path, content: bytes) -> None:
    """Writes a file whole. Raises OSError, and leaves the old file as it was."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    handle = open_private(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(content)
        sync_file(handle)
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    finally:
        os.close(handle)
    sync_folder(path.parent)


def remove_durably(*paths: Path) -> None:
    """Removes files of one folder. Raises OSError."""
    is_gone = False
    for path in paths:
        with suppress(FileNotFoundError):
            path.unlink()
            is_gone = True
    if is_gone:
        sync_folder(paths[0].parent)


def network_file_system(path: Path) -> str | None:
    """Returns the type of the network file system of `path` (or its nearest existing ancestor), or None."""
    resolved = path.resolve()
    inside = [(point, kind) for point, kind in _mounts() if resolved.is_relative_to(point)]
    kind = max(inside, key=lambda mount: len(mount[0]))[1] if inside else ""
    return kind if kind in _NETWORK else None


def existing(path: Path) -> Path:
    """Returns `path` or its nearest existing ancestor."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """Returns the bytes that a user may still write on the volume of `path`. Raises OSError."""
    return disk_usage(existing(path)).free


def _mounts() -> list[tuple[str, str]]:
    """Returns mount points with the types of their file systems; none where they cannot be read."""
    if sys.platform == "darwin":
        parts = (line.partition(" on ")[2].rpartition(" (") for line in _output("/sbin/mount").splitlines())
        return [(point, options.split(",")[0]) for point, _, options in parts]
    try:
        fields = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return []
    return [(field[1].replace("\\040", " "), field[2]) for field in fields if len(field) > 2]


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _refuse_owner(path: Path, owner: int) -> None:
    if owner != os.geteuid():
        raise _refusal(
            f"{path} belongs to uid {owner} and this runs as uid {os.geteuid()}: run as its owner, or chown it"
        )


def _refusal(message: str) -> StoreOpenError:
    return StoreOpenError(OpenFailure.VOLUME, message)
