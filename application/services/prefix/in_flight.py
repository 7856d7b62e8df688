"""Who computes which prefix right now, so that nobody computes it a second time.

A sequence whose prompt shares tokens with an earlier one that has not got that far yet waits for it, and resumes where
the two part. Waiting only ever points from a later sequence to an earlier one, so there are no cycles. Compute thread.
"""

from collections.abc import Iterable
from typing import Protocol

from domain.explanation import common_length
from domain.hashing import BlockChain
from domain.ids import SequenceId

MIN_SHARED_TOKENS = 32
"""Waiting for less than this is not worth it."""


class Prefilling(Protocol):
    """What is asked of a sequence in flight. `position`: tokens its state covers now."""

    @property
    def id(self) -> SequenceId: ...

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...

    @property
    def chain(self) -> BlockChain: ...

    @property
    def position(self) -> int: ...


def shared_tokens(left: Prefilling, right: Prefilling) -> int:
    """How many leading tokens both prompts have in common, by way of their hashes."""
    if left.chain.namespace != right.chain.namespace:
        return 0
    start = common_length(left.chain.hashes, right.chain.hashes) * left.chain.block_size
    size = left.chain.block_size
    return start + common_length(left.prompt_ids[start : start + size], right.prompt_ids[start : start + size])


def find_owner(
    sequence: Prefilling, reusable: int, others: Iterable[Prefilling], step: int
) -> tuple[Prefilling, int] | None:
    """The earlier sequence that will compute most of this prompt, and up to where; None if nobody helps.

    `reusable`: what `sequence` can resume at already. `step`: only multiples of it can be resumed at.
    """
    best: tuple[Prefilling, int] | None = None
    for other in others:
        if other.id >= sequence.id:
            continue
        limit = min(len(sequence.prompt_ids), len(other.prompt_ids)) - 1
        target = min(shared_tokens(sequence, other), limit) // step * step
        if other.position < target and target >= reusable + MIN_SHARED_TOKENS and (best is None or target > best[1]):
            best = (other, target)
    return best


__all__ = ("MIN_SHARED_TOKENS", "Prefilling", "find_owner", "shared_tokens")
