"""A recurrent state of mlx-lm's with the methods by which mlx-vlm's networks change it."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.kv_rows import lib


class RecurrentArrays(lib.ArraysCache):  # type: ignore[misc]
    """As mlx-vlm's class of this kind, without its history: drafts go back by `rollback`."""

    cache: list[mx.array | None]
    is_speculating = False
    history_capacity = 0

    def update_recurrent(self, index: int, length: int, update: Callable[..., Any]) -> tuple[mx.array, mx.array]:
        """Runs a transition over `length` tokens; returns its output, and the state after it. `update` maps a state,
        None at first, and the number of states to keep, None, to both."""
        output, state = update(self.cache[index], None)[:2]
        self.cache[index] = state
        return output, state

    def update_window(self, index: int, source: mx.array, width: int, *, lengths: None = None) -> mx.array:
        """Keeps the last `width` steps of [rows, steps, ...], and returns them."""
        self.cache[index] = state = mx.contiguous(source[:, source.shape[1] - width :])
        return state
