"""Positions in a sequence with images, where an image has rows and columns.

A text token has one position, equal on all three axes (frame, row, column). The tokens of an image begin at one
position and differ in their row and column, and the text behind them continues after the longest side:

    tokens     T  T  I  I  I  I  I  I  T  T        an image of 2 rows and 3 columns
    frames     0  1  2  2  2  2  2  2  5  6
    rows       0  1  2  2  2  3  3  3  5  6
    columns    0  1  2  3  4  2  3  4  5  6

So positions derive from the places of the images alone, and those of the text behind them are the number of tokens less
a shift. Nothing about them is kept with a model or a cache.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.runtime.arrays import from_numpy
from adapters.mlx.speculation.drafting import nn
from domain.prefix.prompt_content import MediaSpan


def positions_of(media: Sequence[MediaSpan], start: int, count: int) -> NDArray[np.int32]:
    """The positions [3, count] of the tokens from `start` on, all equal where no image of `media` has a grid."""
    index = np.arange(start, start + count, dtype=np.int32)
    found = np.tile(index, (3, 1))
    for span in media:
        if span.grid is not None:
            _, rows, columns = span.grid
            at = index - span.start
            inside = np.stack([at // (rows * columns), at // columns % rows, at % columns])
            found += np.where((at >= 0) & (index < span.end), inside - at, 0)
            found -= np.where(index >= span.end, span.shift, 0)
    return found


class GridRope(nn.Module):  # type: ignore[misc]
    """A layer's rotary embedding that also takes three positions a token, each for a part of the frequencies."""

    def __init__(self, rope: Any, dims: int, sections: Sequence[int], *, is_interleaved: bool) -> None:
        """`dims`: that are rotated, in halves. `sections`: frequencies of each axis. `is_interleaved`: the axes take
        turns, as far as the sections of rows and columns reach; otherwise they follow each other."""
        nn.Module.__init__(self)
        self.rope = rope
        axis = np.zeros(dims // 2, np.int8)
        for number in (1, 2):
            if is_interleaved:
                axis[number : 3 * sections[number] : 3] = number
            else:
                axis[sum(sections[:number]) : sum(sections[: number + 1])] = number
        self._axis = np.tile(axis, 2)

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """Rotates x [rows, heads, length, dim]. `offset`: of the first token; or positions int32 [3, length] of one
        row's tokens, each of which is then a row of its own for the layer's kernel."""
        if not isinstance(offset, mx.array) or offset.ndim < 2:
            return cast(mx.array, self.rope(x, offset=offset))
        tokens = mx.swapaxes(x, 0, 2)
        rotated = [mx.swapaxes(self.rope(tokens, offset=offset[axis]), 0, 2) for axis in range(3)]
        axis = from_numpy(np.pad(self._axis, (0, x.shape[-1] - len(self._axis))))
        found = mx.where(axis == 1, rotated[1], rotated[0])
        return mx.where(axis == 2, rotated[2], found)
