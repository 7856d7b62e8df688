"""The detector of exact repetition: compared with a search of the whole text, and its limits."""

import random

import pytest

from domain.errors import InvalidRequest
from domain.request.repetition import Repetition, RepetitionDetection, RepetitionDetector


def found_by_search(tokens: list[int], rule: RepetitionDetection) -> int | None:
    """The size of the shortest pattern whose copies end the tokens."""
    for size in range(max(1, rule.min_pattern_size), rule.max_pattern_size + 1):
        num_tokens = max(size * rule.min_count, rule.min_tokens)
        tail = tokens[-num_tokens:]
        if len(tokens) >= num_tokens and tail[size:] == tail[:-size]:
            return size
    return None


@pytest.mark.parametrize("seed", range(20))
def test_the_detector_finds_what_a_search_of_the_whole_text_finds(seed: int) -> None:
    draw = random.Random(seed)
    rule = RepetitionDetection(draw.randint(1, 9), 1, draw.randint(2, 4), draw.choice((0, 12, 20)))
    detector, tokens, num_found = RepetitionDetector(rule), list[int](), 0
    while len(tokens) < 400:
        for token in [draw.randrange(2) for _ in range(draw.randint(1, 9))] * draw.randint(1, 25):
            tokens.append(token)
            found = detector.accept(token)
            assert (found and found.pattern_size) == found_by_search(tokens, rule)
            num_found += found is not None
    assert num_found


def accepted(detector: RepetitionDetector, *tokens: int) -> list[tuple[int, Repetition]]:
    return [(at, found) for at, token in enumerate(tokens, 1) if (found := detector.accept(token)) is not None]


@pytest.mark.parametrize(("size", "at"), [(1, 512), (100, 512), (405, 1620), (512, 2048)])
def test_the_defaults_want_four_copies_and_512_tokens(size: int, at: int) -> None:
    detector = RepetitionDetector(RepetitionDetection(512))
    (first, *_) = accepted(detector, *list(range(size)) * (2048 // size + 1))
    assert first == (at, Repetition(size, at // size))


def test_a_pattern_longer_than_the_largest_is_none() -> None:
    assert accepted(RepetitionDetector(RepetitionDetection(99, min_tokens=0)), *list(range(100)) * 20) == []


def test_a_pattern_does_not_reach_over_a_restart() -> None:
    detector = RepetitionDetector(RepetitionDetection(4, min_tokens=0))
    assert accepted(detector, 1, 2, 1, 2, 1, 2, 1) == []
    detector.restart()
    assert accepted(detector, 2, 1, 2, 1, 2, 1) == []
    assert accepted(detector, 2, 1) == [(2, Repetition(2, 4))]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"max_pattern_size": -1}, "max_pattern_size"),
        ({"max_pattern_size": 1_025}, "max_pattern_size"),
        ({"max_pattern_size": 8, "min_pattern_size": 9}, "min_pattern_size"),
        ({"min_pattern_size": -1}, "min_pattern_size"),
        ({"max_pattern_size": 8, "min_count": 1}, "min_count"),
        ({"max_pattern_size": 8, "min_tokens": -1}, "min_tokens"),
    ],
)
def test_ranges_are_checked(values: dict[str, int], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        RepetitionDetection(**values)
    assert raised.value.param == param
