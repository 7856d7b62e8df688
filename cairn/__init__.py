"""Cairn as a library: `build_service(Settings(...))` is the whole server without a socket.

The wheel carries Cairn's packages (`domain`, `application`, `adapters`, `interfaces`) in `cairn/_app`, so that
site-packages gains the name `cairn` only. Importing `cairn` puts them on the path; in a checkout they lie beside it.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from application.settings import Settings
    from interfaces.composition.service import Service, build_service

__all__ = ["Service", "Settings", "build_service"]

_APP = Path(__file__).parent / "_app"
_HOMES = {
    "Service": "interfaces.composition.service",
    "Settings": "application.settings",
    "build_service": "interfaces.composition.service",
}

if _APP.is_dir() and str(_APP) not in sys.path:
    sys.path.insert(0, str(_APP))


def __getattr__(name: str) -> Any:
    """The public names, imported on first use: `cairn --help` must not wait for MLX."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cairn' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
