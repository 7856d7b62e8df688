"""Positions of text and images in a sequence."""

import numpy as np
import pytest

from adapters.mlx.vision.positions import grid_positions, shift_at
from domain.prefix.prompt_content import MediaSpan

# Two texts of two tokens, an image of 2 rows and 3 columns, a text of three, and an image of 3 rows and 1 column.
MEDIA = (MediaSpan(2, 6, b"a", (), (1, 2, 3)), MediaSpan(11, 3, b"b", (), (1, 3, 1)))
EXPECTED = [
    [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 8, 8, 11],
    [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9, 10, 11],
    [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 8, 8, 11],
]


def test_an_image_takes_as_many_positions_as_its_longest_side() -> None:
    found = grid_positions(MEDIA, 0, 15)
    assert found is not None
    assert found.tolist() == EXPECTED


@pytest.mark.parametrize("start", range(15))
def test_positions_are_the_same_wherever_a_chunk_begins_and_ends(start: int) -> None:
    for end in range(start + 1, 16):
        found = grid_positions(MEDIA, start, end - start)
        if found is None:  # no image: one offset says all
            found = np.tile(np.arange(start, end) - shift_at(MEDIA, start), (3, 1))
        assert found.tolist() == [axis[start:end] for axis in EXPECTED]


def test_an_image_with_one_position_a_token_shifts_nothing() -> None:
    media = (MediaSpan(2, 6, b"a"),)
    assert grid_positions(media, 0, 10) is None
    assert shift_at(media, 10) == 0
