"""What one choice has told and its reader has not read: bounded, and merged when it piles up.

Items that pile up are kept as runs, joined once when they are read: adding one costs what is in it, however many wait.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from domain.stream import Admitted, ContentDelta, Failed, Finished, PromptLogprobs, StreamItem, ToolCallDelta

MERGE_ABOVE = 32
"""Items waiting for a reader before further ones of the same kind are merged."""

MAX_HELD_BYTES = 16 * 2**20
"""Estimated: 150,000 tokens of text, or 5,000 with twenty alternatives each."""

_TOKEN_BYTES = 100
_LOGPROB_BYTES = 150


def held_bytes(item: StreamItem) -> int:
    """An estimate of the memory an item takes; additive over what is merged. Nothing for those that are few."""
    if isinstance(item, PromptLogprobs):
        return _LOGPROB_BYTES * sum(1 + len(score.top) for score in item.scores if score is not None)
    if not item.is_content:
        return 0
    delta = cast(ContentDelta, item)
    text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
    alternatives = sum(1 + len(logprob.top) for logprob in delta.logprobs)
    return len(text) + _TOKEN_BYTES * len(delta.token_ids) + _LOGPROB_BYTES * alternatives


class Unread:
    """For one writer and one reader on the event loop."""

    __slots__ = ("_held_bytes", "_runs", "max_held_bytes")

    def __init__(self, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self.max_held_bytes = max_held_bytes
        self._held_bytes = 0
        self._runs: deque[list[StreamItem]] = deque()

    def __len__(self) -> int:
        """Items that a reader would get; merged ones are one."""
        return len(self._runs)

    def push(self, item: StreamItem) -> bool:
        """False when that was too much: nothing is taken then."""
        size = held_bytes(item)
        if size and self._held_bytes + size > self.max_held_bytes:
            return False
        self._held_bytes += size
        if len(self._runs) > MERGE_ABOVE and self._runs[-1][-1].merges_with(item):
            self._runs[-1].append(item)
        else:
            self._runs.append([item])
        return True

    def take(self) -> list[StreamItem]:
        """All of it, in order."""
        taken = [_joined(run) for run in self._runs]
        self.clear()
        return taken

    def clear(self) -> None:
        self._runs.clear()
        self._held_bytes = 0


def _joined(run: Sequence[StreamItem]) -> StreamItem:
    first = run[0]
    if len(run) == 1 or isinstance(first, Admitted | Finished | Failed):  # which never merge
        return first
    return first.merged(cast(Any, run[1:]))


__all__ = ("MAX_HELD_BYTES", "MERGE_ABOVE", "Unread", "held_bytes")
