"""Positions of text and images in a sequence."""

import pytest

from adapters.mlx.vision.passes import positions_of
from domain.prefix.prompt_content import MediaSpan

# Two texts of two tokens, an image of 2 rows and 3 columns, a text of three, and an image of 3 rows and 1 column.
MEDIA = (MediaSpan(2, 6, b"a", (), (1, 2, 3)), MediaSpan(11, 3, b"b", (), (1, 3, 1)))
EXPECTED = [
    [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 8, 8, 11],
    [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8, 9, 10, 11],
    [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 8, 8, 11],
]


@pytest.mark.parametrize("start", range(15))
def test_positions_are_the_same_wherever_a_chunk_begins_and_ends(start: int) -> None:
    for end in range(start + 1, 16):
        assert positions_of(MEDIA, start, end - start).tolist() == [axis[start:end] for axis in EXPECTED]


def test_an_image_with_one_position_a_token_shifts_nothing() -> None:
    assert positions_of((MediaSpan(2, 6, b"a"),), 0, 10).tolist() == [list(range(10))] * 3
