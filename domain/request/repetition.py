"""The detection of an answer that repeats itself: its last tokens are copies of one pattern.

    … a b c a b c a b c        pattern a b c, 3 copies

Exact repetition is no proof of a loop (tables of zeros, empty grids and base64 of zeros repeat as well), so detection
is off unless a client or a model's table asks for it, and the defaults want many tokens.
"""

from collections import deque
from dataclasses import dataclass

from domain.errors import require

MAX_PATTERN_SIZE = 1_024
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """The repetition that ends an answer: at least `min_count` copies of a pattern of `min_pattern_size` to
    `max_pattern_size` tokens, and at least `min_tokens` in all. `max_pattern_size` 0: nothing is detected."""

    max_pattern_size: int = 0
    min_pattern_size: int = 1
    min_count: int = 4
    min_tokens: int = 512

    def __post_init__(self) -> None:
        require(
            0 <= self.max_pattern_size <= MAX_PATTERN_SIZE,
            "max_pattern_size",
            f"must be in 0..{MAX_PATTERN_SIZE}, 0 for no detection",
        )
        require(self.min_pattern_size >= 0, "min_pattern_size", "must not be negative")
        require(
            not self.is_on or self.min_pattern_size <= self.max_pattern_size,
            "min_pattern_size",
            "must not exceed max_pattern_size",
        )
        require(not self.is_on or 2 <= self.min_count <= MAX_COUNT, "min_count", f"must be in 2..{MAX_COUNT}")
        require(0 <= self.min_tokens <= MAX_COUNT, "min_tokens", f"must be in 0..{MAX_COUNT}")

    @property
    def is_on(self) -> bool:
        return self.max_pattern_size > 0


@dataclass(frozen=True, slots=True)
class Repetition:
    """A repetition that was detected: `count` whole copies of a pattern of `pattern_size` tokens."""

    pattern_size: int
    count: int


class RepetitionDetector:
    """Detects the repetition of one answer's tokens. Sans-io. A token costs one look at each of the last
    `max_pattern_size` tokens, however long the answer is."""

    __slots__ = ("_begun_at", "_num_seen", "_recent", "_rule")

    def __init__(self, rule: RepetitionDetection) -> None:
        self._rule = rule
        self._recent = deque[int](maxlen=rule.max_pattern_size)  # the latest first
        self._begun_at: dict[int, int] = {}  # by pattern size: the token from which all equal those a pattern before
        self._num_seen = 0

    def restart(self) -> None:
        """Forgets the tokens so far: a pattern does not reach over them."""
        self._recent.clear()
        self._begun_at.clear()

    def accept(self, token_id: int) -> Repetition | None:
        """Adds a token. Returns the repetition that ends with it, that of the shortest pattern."""
        at, begun_at, rule = self._num_seen, self._begun_at, self._rule
        self._num_seen += 1
        self._begun_at = {
            size: begun_at.get(size, at) for size, earlier in enumerate(self._recent, 1) if earlier == token_id
        }
        self._recent.appendleft(token_id)
        for size, start in self._begun_at.items():
            num_tokens = at + 1 - start + size
            if size >= rule.min_pattern_size and num_tokens >= max(size * rule.min_count, rule.min_tokens):
                return Repetition(size, num_tokens // size)
        return None
