"""Grouping bounds what padding costs."""

from hypothesis import given
from hypothesis import strategies as st

from domain.decode_groups import FREE_PADDING, MAX_PADDING, choose_group


@given(st.lists(st.integers(1, 100_000), max_size=24))
def test_padding_stays_bounded_however_sequences_arrive(lengths: list[int]) -> None:
    groups: list[list[int]] = []
    for length in lengths:
        chosen = choose_group(length, groups)
        if chosen is None:
            groups.append([length])
        else:
            groups[chosen].append(length)
    for rows in groups:
        padding = max(rows) * len(rows) - sum(rows)
        assert padding <= max(MAX_PADDING * sum(rows), FREE_PADDING * len(rows))


def test_short_and_long_do_not_share() -> None:
    assert choose_group(4096, [[128, 128, 128]]) is None
    assert choose_group(400, [[128, 128, 128]]) == 0
    assert choose_group(130, [[60_000], [], [100]]) == 2
