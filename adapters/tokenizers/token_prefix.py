"""How many leading tokens two texts share, when one of them is encoded already and encoding the other is dear.

Tokens are compared, not characters: a merge across the point where the texts part changes the token before it. Around
that point both texts are encoded in a window, and the last common token is found again in the whole encoding:

    encoded   ........................[ window     x......... ]....
    other     ........................[ window     y......... ]............
                                                  ^ texts part here
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

from adapters.tokenizers.text_codec import EncodedText

_CHARACTERS_BEFORE = 2048
_CHARACTERS_AFTER = 512
_NUM_WITNESSES = 8
"""Tokens before the last common one that must agree in the window and the whole."""


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
    if encoded.spans is None or parts_at <= _CHARACTERS_BEFORE:
        return common_length(encoded.ids, encode(other[: parts_at + _CHARACTERS_AFTER]).ids)
    first = bisect_left(encoded.spans, (parts_at - _CHARACTERS_BEFORE, 0))
    start = encoded.spans[first][0]
    end = parts_at + _CHARACTERS_AFTER
    window = encode(text[start:end])
    num_common = common_length(window.ids, encode(other[start:end]).ids)
    for count in range(num_common, max(0, num_common - _NUM_WITNESSES), -1):
        found = _found_again(encoded, window, start, count)
        if found:
            return found
    return common_length(encoded.ids, encode(other).ids)


def _found_again(encoded: EncodedText, window: EncodedText, start: int, count: int) -> int:
    """Tokens of the whole up to the window's token number `count`; 0 if the two disagree there."""
    if encoded.spans is None or window.spans is None or count < _NUM_WITNESSES:
        return 0
    span_start = window.spans[count - 1][0]
    rank = count - 1 - bisect_left(window.spans, (span_start, 0))
    index = bisect_left(encoded.spans, (span_start + start, 0)) + rank
    if index + 1 < _NUM_WITNESSES or index >= len(encoded.ids):
        return 0
    whole = encoded.ids[index + 1 - _NUM_WITNESSES : index + 1]
    return index + 1 if whole == window.ids[count - _NUM_WITNESSES : count] else 0


__all__ = ("common_length", "common_text_length", "common_token_count")
