"""How large the store may become. A share of the free space is taken once and remembered in the store's folder.

Free space is what everybody else leaves: a quota that followed it would shrink, and evict, at every start.
"""

import json
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage

from adapters.lmdb.directory import StoreDirectory
from adapters.lmdb.private_files import read_private, replace_durably
from application.ports.block_store import StoreOpenError
from application.settings import StoreSettings

_DEFAULT_SHARE = 0.2
_MAX_DEFAULT_BYTES = 128 << 30


def quota_bytes(settings: StoreSettings, path: Path) -> int:
    """What is set, and never more than the volume has.

    A share means one of the space free when it was first used, plus what the store took already. The default is a
    fifth of that, or what the store takes already where that is more, and at most 128 GiB.
    """
    usage = disk_usage(_existing(path))
    if settings.quota is not None and settings.quota.num_bytes is not None:
        return min(settings.quota.num_bytes, usage.total)
    remembered = _remembered(settings, path)
    if remembered is not None:
        return min(remembered, usage.total)
    taken_bytes = StoreDirectory(path).size_bytes
    available_bytes = usage.free + taken_bytes
    if settings.quota is not None:
        return settings.quota.resolve(available_bytes)
    return min(max(int(available_bytes * _DEFAULT_SHARE), taken_bytes), _MAX_DEFAULT_BYTES)


def remember_quota(settings: StoreSettings, path: Path, num_bytes: int) -> None:
    """With the setting it came from, so that another setting counts. Raises OSError."""
    is_fixed = settings.quota is not None and settings.quota.num_bytes is not None
    if is_fixed or _remembered(settings, path) is not None:
        return
    content = json.dumps({"setting": _setting(settings), "quota_bytes": num_bytes})
    replace_durably(StoreDirectory(path).quota, content.encode() + b"\n")


def _remembered(settings: StoreSettings, path: Path) -> int | None:
    """None: never, of another setting, or unreadable."""
    with suppress(OSError, StoreOpenError, ValueError, TypeError, KeyError):
        found = json.loads(read_private(StoreDirectory(path).quota))
        num_bytes = found["quota_bytes"]
        if found["setting"] == _setting(settings) and isinstance(num_bytes, int) and num_bytes > 0:
            return num_bytes
    return None


def _setting(settings: StoreSettings) -> str:
    return "default" if settings.quota is None else str(settings.quota)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path
