"""A request for vectors or scores in the engine: a prompt, which its texts begin with, and rows, the rest of each.

    waiting ──► restoring ──► prefilling the prompt ──► prefilling the rows ──► ended

The prompt is looked up, computed and kept like that of a chat. The rows are computed behind copies of its state, which
are dropped: as many in one pass as the states of all have tokens within the budget, at least one. To the planner they
are the rest of a prompt, whose state does not grow. What was reported of them is not computed again.
"""

from bisect import bisect
from dataclasses import replace
from itertools import accumulate
from typing import Any

from application.ports.engine import Ended
from application.services.prefix.cache import PrefixCache
from application.services.token_side.memory_guard import MemoryGuard
from application.services.token_side.sequence_run import SequenceRun
from domain.id_row import IdRow
from domain.prefix.explanation import Explanation
from domain.request.request import FinishReason
from domain.request.stream import Pooled, PrefillProgress
from domain.scheduling.step_values import PrefillChunk, PrefillingView, PromptView, SequenceView


class PooledRun(SequenceRun):
    """`budget`: the most tokens of a pass."""

    def __init__(self, *args: Any, budget: int, **others: Any) -> None:
        super().__init__(*args, **others)
        self._budget = budget
        self._num_prompt = len(self.sequence.prompt_ids) - 1
        self._ends = tuple(accumulate(map(len, self.submission.rows), initial=self._num_prompt))
        self._num_done = self._num_done_before = max(0, bisect(self._ends, self._num_reported) - 1)

    def view(self) -> SequenceView:
        view, start, num_tokens = super().view(), self._num_prompt, len(self._next()) * len(self._next()[0])
        num_left = max(num_tokens, self._ends[-1] - self._ends[self._num_done])
        whole = ((start, start + num_tokens),)  # a long row is a pass, whatever the budget
        if isinstance(view, PrefillingView) and view.num_computed == start:
            return replace(view, num_prompt=start + num_left, pass_tokens=num_tokens, whole=whole)
        if isinstance(view, PrefillingView):
            return replace(view, num_prompt=start + num_tokens, stops=(*view.stops, start))
        assert isinstance(view, PromptView), "a pooled request does not decode"
        return replace(view, num_prompt=start + num_tokens, whole=whole)

    def charge(self, guard: MemoryGuard) -> None:
        super().charge(guard)
        if (shape := self.shape()) is not None:
            self.charge_bytes += guard.charge_bytes(shape, sum(self._num_prompt + len(row) for row in self._next()), 0)

    def prefill(self, chunk: PrefillChunk) -> int:
        if self.sequence.num_computed < self._num_prompt:
            return super().prefill(chunk)
        rows, started, pooling = self._next(), self._batcher.now_ns(), self.submission.pooling
        assert pooling is not None
        values = self._loaded().pool(self.id, rows, pooling)
        start, end = self._ends[self._num_done], self._ends[self._num_done + len(rows)]
        self._num_done += len(rows)
        self._send(Pooled(tuple(values)))
        self._send(PrefillProgress(end, self._ends[-1]))
        self._emit_chunk(start, end, started, is_resumed=False)
        return end - start

    def end_of_prompt(self) -> Ended | None:
        is_over = self._num_done == len(self.submission.rows)
        return Ended(self.usage(), FinishReason.STOP) if is_over else None

    def preempt(self, prefix_cache: PrefixCache, *, is_alone: bool) -> None:
        """As for any sequence; a pass since the last time is progress."""
        super().preempt(prefix_cache, is_alone=is_alone and self._num_done == self._num_done_before)
        self._num_done_before = self._num_done

    def _begin_prompt(self, explanation: Explanation) -> None:
        super()._begin_prompt(replace(explanation, num_prompt=self._ends[-1]))

    def _next(self) -> tuple[IdRow, ...]:
        """Returns the rows of the next pass."""
        rows = self.submission.rows[self._num_done :]
        return rows[: max(1, self._budget // (self._num_prompt + len(rows[0])))] if rows else ()
