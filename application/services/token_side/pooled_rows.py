"""The rows of a pooled request: the ends of its texts, computed in batches behind the state of its prompt.

The prompt is looked up, restored, computed and kept like that of a chat, with the first token of a row behind it: a
lookup leaves the last token to be computed, so the whole prompt can be restored, and its end is kept for the next
request that begins like it. Compute thread only.
"""

from application.ports.compute import LoadedModel
from application.ports.engine import Submission
from application.services.prefix.sequence_cache import SequenceCache
from application.services.token_side.memory_guard import MemoryGuard
from domain.ids import SequenceId
from domain.memory.shape import MemoryShape
from domain.prefix.explanation import Explanation, StopReason
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.pooling import Pooling
from domain.request.stream import Pooled
from domain.scheduling.row_batches import RowBatches
from domain.scheduling.step_values import PrefillChunk


class PooledRows:
    """The rows of one submission. `batches`: of the rows that were not reported when they were packed. `num_done`:
    tokens of the reported ones."""

    def __init__(self, submission: Submission, pooling: Pooling, reported: frozenset[int]) -> None:
        """`reported`: the rows that another engine reported."""
        self._submission, self._pooling, self._reported = submission, pooling, set(reported)
        self.batches = RowBatches(len(submission.prompt.token_ids))
        self.num_done = sum(len(submission.rows[row]) for row in reported)

    @property
    def is_complete(self) -> bool:
        return len(self._reported) == len(self._submission.rows)

    @property
    def looked_up(self) -> EncodedPrompt:
        """The prompt as the prefix cache gets it."""
        return self._submission.prompt.followed_by(self._submission.rows[0][:1])

    def without_prefix(self) -> SequenceCache:
        """Returns the cache of a request whose prompt is empty."""
        note = "the texts have no common beginning"
        return SequenceCache(Explanation(self._submission.num_prompt_tokens, StopReason.DISABLED, note=note))

    def pack(self, guard: MemoryGuard, shape: MemoryShape) -> None:
        """Plans the batches of all rows that were not reported yet."""
        rows = self._submission.rows
        left = [row for row in range(len(rows)) if row not in self._reported]
        self.batches = guard.pack(shape, self.batches.start, [len(row) for row in rows], left)

    def compute(self, model: LoadedModel, id: SequenceId, chunk: PrefillChunk) -> Pooled:
        """Computes the batch of a chunk behind the prompt. Raises as `PoolingRows.pool`."""
        rows, batch = self._submission.rows, self.batches.at(chunk.start)
        values = model.pool(id, [rows[row] for row in batch.rows], self._pooling)
        self._reported.update(batch.rows)
        self.num_done += sum(len(rows[row]) for row in batch.rows)
        return Pooled(batch.rows, tuple(values))
