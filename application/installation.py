"""The installation that this code runs from: its version, and how a child interpreter imports the same code."""

import os
import site
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DISTRIBUTION = "cairn-mlx"
"""The name on the package index, where `cairn` is another project."""

_ROOT = str(Path(__file__).parents[1])


def installed_version() -> str:
    """The installed version; `0` in a checkout that was never installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "0"


def child_environment() -> Mapping[str, str]:
    """This process's environment, with a PYTHONPATH to this code where a new interpreter would not find it."""
    path = os.environ.get("PYTHONPATH", "")
    found_anyway = {*site.getsitepackages(), site.getusersitepackages(), *path.split(os.pathsep)}
    if _ROOT in found_anyway:
        return os.environ
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (_ROOT, path)))}
