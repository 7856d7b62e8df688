"""mlx-lm's attention is replaced in all families, and for good: not in a test."""

import sys
from collections.abc import Generator
from contextlib import contextmanager

from adapters.mlx.runtime.mlx_lm import mlx_lm_module

_NAME = "scaled_dot_product_attention"


@contextmanager
def attention_given_back() -> Generator[None]:
    """What is replaced meanwhile is as it was afterwards, in families that are imported meanwhile, too."""
    before = getattr(mlx_lm_module("models.base"), _NAME)
    try:
        yield
    finally:
        after = getattr(mlx_lm_module("models.base"), _NAME)
        for module in list(sys.modules.values()):
            if getattr(module, _NAME, None) is after:
                setattr(module, _NAME, before)
