"""mlx-vlm's model modules, imported without the rest of it.

`import mlx_vlm` also imports its generator, speculative decoding and a client of the network, and changes environment
variables of transformers. Only the modules of models are needed, so the package's own `__init__` is not run: an empty
package of the same name stands in for it, if nothing has imported the real one.
"""

import importlib
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_NAME = "mlx_vlm"
NEEDED = "mlx-vlm>=0.7.10,<0.8"


def vlm_module(name: str) -> Any:
    """Returns a module of mlx-vlm, such as `models.idefics3`; untyped, as the library is. Raises ImportError."""
    _prepare()
    return importlib.import_module(f"mlx_vlm.{name}")


def missing() -> str:
    """Returns the library that is not installed and is needed by mlx-vlm's modules, as a reason with the command that
    installs it; empty if none is."""
    try:
        found = version("mlx-vlm")
    except PackageNotFoundError:
        return f"mlx-vlm is not installed: pip install pillow && pip install --no-deps '{NEEDED}'"
    if not re.match(r"0\.7\.[1-9]\d", found):
        return f"mlx-vlm {found} is installed: pip install --no-deps '{NEEDED}'"
    return "" if find_spec("PIL") else "Pillow is not installed: pip install 'cairn-mlx[vision]'"


@cache
def _prepare() -> None:
    if _NAME in sys.modules:
        return
    spec = find_spec(_NAME)
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError(missing())
    package = ModuleType(_NAME)
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules[_NAME] = package
