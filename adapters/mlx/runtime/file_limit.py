"""mlx-lm, imported without its side effect on the process.

`import mlx_lm` sets the limit of open files to (2048, 4096): it lowers the hard limit for good, and fails outright
where the hard limit is below 4096. A server needs its descriptors for sockets, so the call is turned away while the
package loads, and the soft limit is raised towards the hard one instead. Every module of this adapter that imports
mlx_lm imports this module first; importing it is enough.
"""

import importlib
import resource
import sys
from typing import Any

WANTED_OPEN_FILES = 65_536


def raise_soft_limit() -> int:
    """Raise the soft limit of open files as far as the hard limit and `WANTED_OPEN_FILES` allow; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_OPEN_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems refuse what they announce; the old limit still stands
        return soft
    return wanted


def _import_quietly() -> None:
    real = resource.setrlimit

    def keep_file_limit(kind: int, limits: tuple[int, int]) -> None:
        if kind != resource.RLIMIT_NOFILE:
            real(kind, limits)

    setattr(resource, "setrlimit", keep_file_limit)  # noqa: B010 - an assignment would need an ignore for two checkers
    try:
        importlib.import_module("mlx_lm.utils")
    finally:
        setattr(resource, "setrlimit", real)  # noqa: B010


if "mlx_lm.utils" not in sys.modules:
    _import_quietly()
raise_soft_limit()


def mlx_lm_module(name: str) -> Any:
    """A module of mlx-lm, such as `models.cache`; untyped, as the library is. Raises ImportError."""
    return importlib.import_module(f"mlx_lm.{name}")
