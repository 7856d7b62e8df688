"""What the machine says about the place a store lies in: its file system and its free space."""

import subprocess
import sys
from pathlib import Path
from shutil import disk_usage

_NETWORK = frozenset({
    "9p", "afpfs", "afs", "ceph", "cifs", "davfs", "fuse.davfs2", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs",
    "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3", "smbfs", "webdav",
})  # fmt: skip


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _mounts() -> list[tuple[str, str]]:
    """(mount point, type of file system), as far as they can be known."""
    if sys.platform == "darwin":
        parts = (line.partition(" on ")[2].rpartition(" (") for line in _output("/sbin/mount").splitlines())
        return [(point, options.split(",")[0]) for point, _, options in parts]
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return []
    fields = (line.split() for line in lines)
    return [(field[1].replace("\\040", " "), field[2]) for field in fields if len(field) > 2]


def network_file_system(path: Path) -> str | None:
    """The type of the network file system that `path` (or its nearest existing ancestor) lies on, or None."""
    resolved = path.resolve()
    inside = [(point, kind) for point, kind in _mounts() if resolved.is_relative_to(point)]
    kind = max(inside, key=lambda mount: len(mount[0]))[1] if inside else ""
    return kind if kind in _NETWORK else None


def free_bytes(path: Path) -> int:
    """Bytes a user may still write on the volume of `path` (or of its nearest existing ancestor)."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return disk_usage(path).free
