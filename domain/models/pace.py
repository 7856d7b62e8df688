"""The measured pace of a model: seconds a token of computing prompts, by depth, because attention makes deep tokens
dearer.

    depth    0      1k     2k          4k                  8k
             |  0   |  1   |     2     |         3         |   ...   numbers of the buckets

A depth that was not measured has the pace of the nearest measured bucket before it, or, without one, of the nearest
after it in proportion to the depth. Where the cost of a token is `a + b * depth`, both are at most what is true, but
for the width of a bucket.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

FIRST_BUCKET_TOKENS = 1024

MEASURED_TOKENS = 64
"""The shortest chunk that is measured: a shorter one takes as long as reading the weights does."""

BucketPaces: TypeAlias = tuple[tuple[int, float], ...]
"""The seconds a token of some buckets, each beside the bucket's number."""


class Pace:
    """The measured seconds a token of computing the prompts of one model, by depth."""

    def __init__(self, earlier: BucketPaces = (), keep: Callable[[BucketPaces], object] = lambda _: None) -> None:
        """`earlier`: what an earlier start measured; it weighs as much as a chunk of FIRST_BUCKET_TOKENS, so that what
        is measured now soon outweighs it. `keep` is called when the measured tokens of a bucket have about doubled."""
        self._tokens = Counter({bucket: FIRST_BUCKET_TOKENS for bucket, _ in earlier})
        self._seconds = {bucket: per_token_s * FIRST_BUCKET_TOKENS for bucket, per_token_s in earlier}
        self._keep = keep

    def add(self, start: int, end: int, seconds: float) -> None:
        """Measures a chunk; its seconds are spread evenly over its tokens."""
        if (num_tokens := end - start) < MEASURED_TOKENS:
            return
        has_doubled = False
        for bucket, first, last in _parts(start, end):
            before = self._tokens[bucket]
            self._tokens[bucket] = now = before + last - first
            self._seconds[bucket] = self._seconds.get(bucket, 0.0) + seconds * (last - first) / num_tokens
            has_doubled |= now.bit_length() > before.bit_length()
        if has_doubled:
            self._keep(tuple((bucket, self._seconds[bucket] / self._tokens[bucket]) for bucket in sorted(self._tokens)))

    def seconds_for(self, num_tokens: int) -> float | None:
        """Returns the time of computing the first tokens of a prompt; None until something was measured."""
        if not self._tokens:
            return None
        return sum(
            (last - first) * self._at(bucket, (first + last) / 2) for bucket, first, last in _parts(0, num_tokens)
        )

    def _at(self, bucket: int, depth: float) -> float:
        before = max((one for one in self._tokens if one <= bucket), default=None)
        nearest = min(self._tokens) if before is None else before
        share = 1.0 if before is not None else depth / (FIRST_BUCKET_TOKENS << nearest)
        return share * self._seconds[nearest] / self._tokens[nearest]


def _parts(start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The parts of a range that lie in one bucket each: the bucket, the first token and the one after the last."""
    while start < end:
        bucket = (start // FIRST_BUCKET_TOKENS).bit_length()
        last = min(end, FIRST_BUCKET_TOKENS << bucket)
        yield bucket, start, last
        start = last
