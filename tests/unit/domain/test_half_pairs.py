"""Halves of surrogate pairs are replaced, and nothing else is."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domain.half_pairs import without_halves

PIECES = st.sampled_from([
    r"\ud83d", r"\uDBFF", r"\ude00", r"\uDC00", r"\\", r"\"", r"\n", r"\u0041", r"\ud7ff", "ud83d", "u", "A", "é", "😀",
])  # fmt: skip


@given(st.lists(PIECES).map("".join))
@example(r"\\\ud83d\ude00\ude00")
@example(r"\\ud83d\ude00")
@example(r"\ud83d\ud83d\ude00")
def test_only_what_spells_no_character_is_replaced(spelled: str) -> None:
    read = json.loads(f'"{spelled}"')
    wanted = "".join("�" if "\ud800" <= char <= "\udfff" else char for char in read)
    assert json.loads(without_halves(f'"{spelled}"'.encode())) == wanted


@pytest.mark.parametrize("body", [b"\xff \\ud83d", rb'"\ud8"', b""])
def test_what_is_no_json_stays_as_it_is(body: bytes) -> None:
    assert without_halves(body) == body


def test_a_body_full_of_backslashes_or_halves_takes_linear_time() -> None:
    """A quadratic search would not end within the patience of a test."""
    assert without_halves(b"\\" * (4 << 20) + rb"\ud83d").endswith(rb"\\\ufffd")
    with pytest.raises(ValueError, match="halves of surrogate pairs"):
        without_halves(rb"\ud83d" * (1 << 20))
