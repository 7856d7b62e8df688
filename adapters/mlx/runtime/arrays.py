"""MLX calls whose published types are loose, given exact ones; and prefill chunks queued on the device.

All that waits for the device, or hands it work, passes `evaluate`, `evaluate_soon`, `finish` or `clear_cache`. What
they raise is the device's failure, whatever the message: MLX keeps the error of a pass until the next check of its
stream, by whomever, and an evaluation that raises by itself drops the errors of all other work under way. Building a
graph raises at once, and what it raises is the caller's.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

import mlx.core as mx
import mlx.utils
import numpy as np
from numpy.typing import NDArray

from application.ports.compute import DeviceFailed
from domain.errors import InvalidRequest
from domain.id_row import IdRow

_mx: Any = mx
_mlx_utils: Any = mlx.utils


def evaluate(arrays: Iterable[mx.array]) -> None:
    """Computes these arrays together and waits for them. Raises DeviceFailed."""
    _computing(_mx.eval, list(arrays))


def evaluate_soon(arrays: Iterable[mx.array]) -> None:
    """Queues the computation of these arrays without waiting. Raises DeviceFailed, perhaps of earlier work."""
    _computing(_mx.async_eval, list(arrays))


def finish() -> None:
    """Waits for all work of this thread, and verifies it. Raises DeviceFailed."""
    _computing(mx.synchronize)


def clear_cache() -> None:
    """Returns freed memory to the system, for which a CPU waits for all work. Raises DeviceFailed."""
    _computing(mx.clear_cache)


def clear_beyond(num_bytes: int) -> None:
    """Returns freed memory to the system if it is more than this. Raises DeviceFailed."""
    if mx.get_cache_memory() > num_bytes:
        clear_cache()


def _computing(call: Callable[..., None], *arguments: object) -> None:
    try:
        call(*arguments)
    except Exception as error:
        if _Trial.is_on:
            raise
        raise DeviceFailed(str(error) or type(error).__name__) from None


class _Trial:
    is_on = False


@contextmanager
def trial() -> Generator[None]:
    """Work that may fail alone, such as a piece of a load: `evaluate` raises MLX's own error meanwhile. Everything else
    is finished before, and the device must be sound afterwards: DeviceFailed is raised where it is not."""
    finish()
    was_on, _Trial.is_on = _Trial.is_on, True
    try:
        yield
    finally:
        _Trial.is_on = was_on
        finish()


def computed_after(array: mx.array, others: Sequence[mx.array]) -> mx.array:
    """The array, which is not computed before the others are."""
    return cast(list[mx.array], _mx.depends([array], list(others)))[0]


def read_back(words: mx.array) -> NDArray[np.uint32]:
    """Computes a uint32 array [n], n > 0, and copies it to the host. Does not wait for work queued after it."""
    evaluate([words])
    return np.frombuffer(byte_view(words), np.uint32).copy()


def token_array(token_ids: Sequence[int]) -> mx.array:
    """uint32 [n]."""
    return mx.array(list(token_ids), dtype=mx.uint32)


def checked_tokens(token_ids: Sequence[int], vocab_size: int) -> mx.array:
    """uint32 [n], n > 0. Raises InvalidRequest for an id outside the vocabulary: MLX checks no bounds and would read
    foreign memory."""
    try:
        words = np.frombuffer(IdRow(token_ids).to_bytes(), "<u4")
    except ValueError:
        words = None
    if words is None or words.max() >= vocab_size:
        raise InvalidRequest(f"token ids must be in 0..{vocab_size - 1}")
    return from_numpy(words)


def from_numpy(array: NDArray[Any]) -> mx.array:
    """A copy on the device; of any dtype that numpy and MLX share."""
    return cast(mx.array, _mx.array(array))


def byte_view(array: mx.array) -> memoryview:
    """The bytes of an evaluated, non-empty array: flat, read-only, not copied on a CPU. Any thread."""
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


class ChunkQueue:
    """Prefill chunks under way on the device. Compute thread only.

    Waiting for every chunk before the next one is built costs a fast GPU a tenth of its prefill rate. With `runs_ahead`
    a chunk is waited for once the next one is queued, so that at most two are under way; otherwise at once. The results
    are the same: MLX never changes an array that is still in use.
    """

    def __init__(self, runs_ahead: bool) -> None:
        self._runs_ahead = runs_ahead
        self._last: mx.array | None = None

    def put(self, state: Sequence[mx.array]) -> None:
        """Computes a chunk's state."""
        if not self._runs_ahead or not state:
            evaluate(state)
            return
        before, self._last = self._last, _mark(state[-1])
        evaluate_soon([*state, self._last])
        evaluate([] if before is None else [before])

    def finish(self) -> None:
        """Waits for every chunk."""
        last, self._last = self._last, None
        evaluate([] if last is None else [last])

    def drop(self) -> None:
        """Forgets the chunk that is under way."""
        self._last = None


def _mark(array: mx.array) -> mx.array:
    """A scalar that is known once the array is. Holding the array itself would make the next update copy it."""
    return mx.sum(array[(slice(0, 1),) * array.ndim])
