"""The grid of a model on Metal, by the rate at which it prefills near the start of a prompt: a chunk must not keep
other streams waiting for longer than about a second.

The choice is kept by the model's content. The grid decides the last bits of a state and is in its fingerprint, so a
rate that is a little different at the next start must not change it.
"""

import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from time import perf_counter
from typing import Any

from adapters.mlx.memory import MeasuredFile
from adapters.mlx.model import MlxModel
from domain.chunking import GRIDS, grid_of_rate
from domain.ids import SequenceId

_ID = SequenceId(-1)
_NUM_TOY_TOKENS = 100
_LENGTH = GRIDS[0]

_logger = logging.getLogger("cairn.mlx")


def find_grid(
    model: MlxModel,
    file: MeasuredFile,
    content: str,
    least: int,
    *,
    room_bytes: int | None = None,
    clock: Callable[[], float] = perf_counter,
) -> Generator[Future[Any] | None, None, int]:
    """Returns the model's grid, remembered or measured; the smallest if it cannot be measured. `content`: identity of
    the model's content and of what computes it. `least`: the smallest. `room_bytes`: memory that measuring may take;
    None for any. `clock`: seconds."""
    key = f"grid of {content}"
    grid = yield from file.recall(key)
    if isinstance(grid, int) and grid in GRIDS:
        return grid
    shape = model.description.memory
    if room_bytes is not None and shape.state_bytes(2 * _LENGTH) + shape.peak_bytes(_LENGTH, 2 * _LENGTH) > room_bytes:
        return least
    try:
        grid = grid_of_rate((yield from _rate(model, clock)), least)
    except Exception as error:  # a family's code may raise anything; the next load measures again
        _logger.info("the rate of %s could not be measured: %s", model.description.id, error)
        return least
    finally:
        model.close([_ID])
    if model.description.weights_digest:  # without one it cannot be recognised
        file.remember(key, grid)
    return grid


def _rate(model: MlxModel, clock: Callable[[], float]) -> Generator[None, None, float]:
    """Returns the tokens a second of the second of two chunks: kernels are compiled in the first."""
    length = min(_LENGTH, model.description.context_length // 2)
    tokens = [(17 * index + 5) % min(_NUM_TOY_TOKENS, model.description.vocab_size) for index in range(length)]
    model.open(_ID)
    model.measured_prefill(_ID, tokens)
    yield
    begun = clock()
    model.measured_prefill(_ID, tokens)
    return length / max(clock() - begun, 1e-6)
