"""Which model types the installed mlx-lm has code for. mlx-lm is slow to import: only renamed types need it."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def knows_model_type(model_type: str) -> bool:
    """Whether a config.json with this `model_type` can be loaded."""
    return _has_module(model_type) or _has_module(_renamed(model_type))


def _has_module(name: str) -> bool:
    spec = find_spec("mlx_lm")
    if spec is None or not name.replace("-", "_").isidentifier():
        return False
    return any((Path(folder) / "models" / f"{name}.py").is_file() for folder in spec.submodule_search_locations or ())


def _renamed(model_type: str) -> str:
    from adapters.mlx.runtime.file_limit import mlx_lm_module

    renamed: dict[str, str] = getattr(mlx_lm_module("utils"), "MODEL_REMAPPING", {})
    return renamed.get(model_type, model_type)
