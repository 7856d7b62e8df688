"""mlx-lm, imported without its side effect on the process.

`import mlx_lm` sets the limit of open files to (2048, 4096). That lowers the hard limit for good, and fails outright
where the hard limit is below 4096. A server needs its descriptors for sockets, so the call is intercepted while the
package loads. All of this adapter imports mlx-lm through `mlx_lm_module`.
"""

import importlib
import os
import resource
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

COMPOSED: Mapping[str, str] = {"idefics3": "llama", "smolvlm": "llama", "llava": "llama", "lfm2_vl": "lfm2"}
"""Families with images that mlx-lm lacks, or knows with one type of text only: `loading.trunks` composes them. Each has
the type of its text where the configuration names none."""

ALIASES: Mapping[str, str] = {
    **{"klear": "Klear", "lille_130m": "lille-130m", "nemotron_nas": "nemotron-nas"},
    **{"minimax_m3": "minimax_m3_vl", "qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"},
}
"""Model types that a module of mlx-lm computes and does not know: other spellings, and the texts of its models with
images alone."""


def mlx_lm_module(name: str) -> Any:
    """Returns a module of mlx-lm, such as `models.cache`; untyped, as the library is. Raises ImportError."""
    _import_quietly()
    return importlib.import_module(f"mlx_lm.{name}")


@cache
def knows_model_type(model_type: str) -> bool:
    """True if there is code for a config.json with this `model_type`. Imports mlx-lm, which is slow, for renamed types
    only."""
    return model_type in {**COMPOSED, **ALIASES} or _has_module(model_type) or _has_module(_renamed(model_type))


@cache
def _import_quietly() -> None:
    real = resource.setrlimit

    def keep_file_limit(kind: int, limits: tuple[int, int]) -> None:
        if kind != resource.RLIMIT_NOFILE:
            real(kind, limits)

    setattr(resource, "setrlimit", keep_file_limit)  # noqa: B010 - an assignment would need an ignore for two checkers
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # Cairn uses no PyTorch
    try:
        importlib.import_module("mlx_lm.utils")
    finally:
        setattr(resource, "setrlimit", real)  # noqa: B010


def _has_module(name: str) -> bool:
    spec = find_spec("mlx_lm")
    if spec is None or not name.replace("-", "_").isidentifier():
        return False
    return any((Path(folder) / "models" / f"{name}.py").is_file() for folder in spec.submodule_search_locations or ())


def _renamed(model_type: str) -> str:
    renamed: dict[str, str] = getattr(mlx_lm_module("utils"), "MODEL_REMAPPING", {})
    return renamed.get(model_type, model_type)


def mlx_lm_classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """The classes of a configuration's network and of its arguments. Raises ValueError for an unknown type."""
    model_type = config["model_type"]
    known = {**config, "model_type": ALIASES.get(model_type, model_type)}
    found: tuple[Any, Any] = mlx_lm_module("utils")._get_classes(config=known)
    return found
