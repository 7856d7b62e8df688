"""Sizes as people write them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from domain.byte_size import ByteSize, format_bytes
from domain.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("0", 0), ("4096", 4096), ("1b", 1), ("16GiB", 16 * 2**30), ("500MB", 500 * 10**6), ("1.5k", 1536),
        ("2 TiB", 2 * 2**40), (" 7kb ", 7000), ("8g", 8 * 2**30), ("3MIB", 3 * 2**20),
    ],
)  # fmt: skip
def test_amounts(text: str, num_bytes: int):
    size = ByteSize.parse(text)
    assert size.resolve(total_bytes=5) == num_bytes
    assert size.share is None


@pytest.mark.parametrize(("text", "resolved"), [("70%", 700), ("0%", 0), ("100 %", 1000), ("12.5%", 125)])
def test_shares(text: str, resolved: int):
    assert ByteSize.parse(text).resolve(total_bytes=1000) == resolved


@pytest.mark.parametrize(
    "text", ["", "lots", "-1", "16 XB", "101%", "1e9", "1,5GB", "GiB", "1 2", "5%b", "٣", "inf", "nan"]
)
def test_anything_else_is_refused_with_the_accepted_forms(text: str):
    with pytest.raises(InvalidRequest, match="write 16GiB, 500MB, 70% or a number of bytes"):
        ByteSize.parse(text)


@given(st.integers(0, 2**62))
@example(2**53 + 1)
def test_whole_numbers_are_exact(num_bytes: int):
    assert ByteSize.parse(str(num_bytes)).num_bytes == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (2**30, "1 GiB"),
        (5 * 2**40, "5 TiB"),
        (1010 * 2**20, "1010 MiB"),
        (int(999.6 * 2**20), "1000 MiB"),
        (int(999.4 * 2**20), "999 MiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_formatting(num_bytes: int, text: str):
    assert format_bytes(num_bytes) == text


@given(st.integers(0, 2**60))
def test_shown_amount_reads_back_to_within_its_digits(num_bytes: int):
    assert ByteSize.parse(str(ByteSize(num_bytes=num_bytes))).resolve(0) == pytest.approx(num_bytes, rel=0.006)


@pytest.mark.parametrize("text", ["70%", "12.5%", "0%", "100%"])
def test_shown_share_reads_back(text: str):
    assert str(ByteSize.parse(text)) == text
