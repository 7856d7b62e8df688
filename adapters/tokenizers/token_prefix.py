"""The number of leading tokens that two texts share, where one is encoded already and encoding the other is costly.

Tokens are compared, not characters: a merge across the point where the texts part changes the token before it. So the
other text is encoded in a window around that point, and its tokens are laid beside those of the whole encoding. The
first ones in the window may differ, because it begins in the middle of something; from where enough of them in a row
agree, the first that does not is the answer:

    encoded   ......................|..|...|..|.|...|..x...
    other                         [ |...|..|..|.|...|..y... ]
                                           ^ they agree    ^ texts part here
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from adapters.tokenizers.text_codec import EncodedText

_WINDOWS = ((128, 256), (384, 256), (2048, 512))
"""Characters before and after the point where the texts part, the next window where tokens of the last did not agree.
A window costs a microsecond a character, several times while a request waits to be queued."""

_NUM_WITNESSES = 8
"""Tokens in a row that must agree before one that does not counts."""

_NEAR = 64
"""Characters before the point where the texts part within which their first different token must begin."""


def common_text_length(first: str, second: str) -> int:
    """Length of the longest common prefix in characters. Bisection on slices: the comparing is done in C."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix of two token sequences."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


def common_token_count(text: str, encoded: EncodedText, other: str, encode: Callable[[str], EncodedText]) -> int:
    """Leading tokens that `encoded` (of `text`) shares with the encoding of `other`."""
    parts_at = common_text_length(text, other)
    if parts_at == len(text) == len(other):
        return len(encoded.ids)
    if not encoded.spans:
        return common_length(encoded.ids, encode(other[: parts_at + _WINDOWS[-1][1]]).ids)
    for before, after in _WINDOWS:
        first = bisect_left(encoded.spans, (parts_at - before, 0), hi=len(encoded.spans) - 1)
        start = encoded.spans[first][0] if parts_at > before else 0
        window = encode(other[start : parts_at + after] if start < parts_at else "")
        count = _first_difference(encoded, first if start else 0, window, start, parts_at)
        if count:
            return count
    return common_length(encoded.ids, encode(other).ids)


def _first_difference(whole: EncodedText, first: int, window: EncodedText, start: int, parts_at: int) -> int:
    """The first token of the whole, from number `first` on, that the window (of text from `start` on) does not have
    after enough tokens that it has. 0 if that cannot be told: none begins shortly before the texts part, or unknown
    characters on both sides go on as the same token."""
    if whole.spans is None or window.spans is None:
        return 0
    at, in_window, here = first, 0, parts_at
    num_agreed = 0 if start else _NUM_WITNESSES  # nothing is cut off before the very beginning
    while at < len(whole.ids) and in_window < len(window.ids):
        here, there = whole.spans[at][0], window.spans[in_window][0] + start
        # Unknown characters are one token, wherever they begin: only what was skipped is told by where it begins.
        if whole.ids[at] == window.ids[in_window] and (here == there or num_agreed >= _NUM_WITNESSES):
            num_agreed, at, in_window = num_agreed + 1, at + 1, in_window + 1
            continue
        if here >= parts_at - _NEAR:
            break
        num_agreed, at, in_window = 0, at + (here <= there), in_window + (there <= here)
    return at if num_agreed >= _NUM_WITNESSES and here <= parts_at else 0
