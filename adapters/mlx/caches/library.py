"""mlx-lm's cache module; imported once, here."""

from typing import Any

from adapters.mlx.runtime.file_limit import mlx_lm_module

lib: Any = mlx_lm_module("models.cache")
