"""The MLX calls whose published types are loose, given exact ones, so that the rest of the adapter stays checked."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import mlx.core as mx
import mlx.utils
import numpy as np
from numpy.typing import NDArray

from domain.errors import InvalidRequest
from domain.id_row import IdRow

_mx: Any = mx
_mlx_utils: Any = mlx.utils


def evaluate(arrays: Iterable[mx.array]) -> None:
    """Compute these arrays now, in one go. Waits."""
    _mx.eval(list(arrays))


def evaluate_soon(arrays: Iterable[mx.array]) -> None:
    """Queue these arrays' computation without waiting for it."""
    _mx.async_eval(list(arrays))


def read_back(words: mx.array) -> NDArray[np.uint32]:
    """Compute a uint32 array [n] that is not empty, and copy it to the host. Waits for it, and for nothing that was
    queued after it."""
    evaluate([words])
    return np.frombuffer(byte_view(words), np.uint32).copy()


def token_array(token_ids: Sequence[int]) -> mx.array:
    """uint32 [n]."""
    return mx.array(list(token_ids), dtype=mx.uint32)


def checked_tokens(token_ids: Sequence[int], vocab_size: int) -> mx.array:
    """uint32 [n], of at least one. Raises InvalidRequest: MLX checks no bounds, and an id outside the vocabulary reads
    foreign memory."""
    try:
        words = np.frombuffer(IdRow(token_ids).to_bytes(), "<u4")
    except ValueError:
        words = None
    if words is None or words.max() >= vocab_size:
        raise InvalidRequest(f"token ids must be in 0..{vocab_size - 1}")
    return from_numpy(words)


def from_numpy(array: NDArray[Any]) -> mx.array:
    """A copy on the device; of any dtype numpy and MLX share."""
    return cast(mx.array, _mx.array(array))


def byte_view(array: mx.array) -> memoryview:
    """The bytes of an evaluated array that is not empty: flat, read-only, no copy on a CPU. Any thread."""
    return memoryview(cast(Any, array)).cast("B").toreadonly()


def add_at(array: mx.array, rows: mx.array, columns: mx.array, value: float) -> mx.array:
    """[rows, columns] with `value` added at each (row, column) pair; the input is unchanged."""
    return cast(mx.array, cast(Any, array).at[rows, columns].add(value))


def parameters(network: Any) -> list[tuple[str, mx.array]]:
    """Every parameter of a network by its dotted name."""
    return cast(list[tuple[str, mx.array]], _mlx_utils.tree_flatten(network.parameters()))


def arrays_in(tree: object) -> list[mx.array]:
    """The arrays of a nested list, tuple or dict."""
    return [found for _, found in _mlx_utils.tree_flatten(tree) if isinstance(found, mx.array)]


def map_rows(function: Callable[[mx.array], mx.array], rows: mx.array) -> mx.array:
    """`function` of every row, stacked, in one vectorised operation."""
    return cast(mx.array, _mx.vmap(function)(rows))
