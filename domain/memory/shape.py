"""What a model needs of memory: its weights, the state of a sequence at any length, and what a step needs beyond both.

All in bytes. A cache's buffer is charged as it is allocated (`buffer_slots`). A windowed cache holds its window, and
while a chunk is prefilled the chunk beside it; a recurrent one is the same at every length. What a step needs beyond
the states is a plane over the chunk's length and the position it ends at, because every temporary of a layer has a row
for each token of the chunk, for each token it looks at, or for both.
"""

from dataclasses import dataclass

from domain.memory.buffer_slots import buffer_slots

NUM_LAST_TOKENS = 512
"""Tokens whose logits are computed at the end of a prompt, at most (`StepLimits.max_last_chunk` of any device)."""


@dataclass(frozen=True, slots=True)
class StateCost:
    """What one state group costs a sequence.

    `bytes_per_token`: over all leaves of the group. `window`: tokens it looks back; None where it keeps all.
    `fixed_bytes`: whatever its length is, as in recurrent states. `step`: tokens its buffers grow by while short.
    """

    bytes_per_token: int
    window: int | None = None
    fixed_bytes: int = 0
    step: int = 256

    def held_bytes(self, num_tokens: int, chunk: int = 0) -> int:
        """Of one sequence of `num_tokens`, whose last `chunk` tokens were prefilled at once."""
        if num_tokens <= 0:
            return 0
        held = buffer_slots(num_tokens, self.step)
        if self.window is not None:
            held = min(held, self.window + chunk)
        return self.fixed_bytes + self.bytes_per_token * held


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Bytes that a forward pass needs beyond the states: once (`base_bytes`), for each token that it computes, for each
    token that it attends to (`seen_bytes`: copies of keys and values), and for each pair of both (scores that no fused
    kernel spares)."""

    base_bytes: int = 0
    token_bytes: int = 0
    seen_bytes: int = 0
    pair_bytes: float = 0

    def near_bytes(self, chunk: int) -> int:
        """Of `chunk` tokens, wherever they are."""
        return self.base_bytes + chunk * self.token_bytes

    def deep_bytes(self, chunk: int, end: int) -> int:
        """Of the tokens up to position `end` beside that."""
        return round((self.seen_bytes + chunk * self.pair_bytes) * end)

    def bytes_at(self, chunk: int, end: int) -> int:
        """Of `chunk` tokens, the last of which is the one before position `end`."""
        return self.near_bytes(chunk) + self.deep_bytes(chunk, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShape:
    """One model. The default costs nothing: nobody estimated it.

    `states`: by state group, in the layout's order. `step`: of a forward pass without its logits. `logit_bytes`: for
    each token whose logits are computed. `sample_bytes`: for each token that is chosen from its logits.
    """

    weight_bytes: int = 0
    states: tuple[StateCost, ...] = ()
    step: StepCost = StepCost()
    logit_bytes: int = 0
    sample_bytes: int = 0

    def state_bytes(self, num_tokens: int, chunk: int = 0) -> int:
        """The live caches of one sequence at this length. `chunk`: how many tokens were prefilled last."""
        return sum(state.held_bytes(num_tokens, chunk) for state in self.states)

    def peak_bytes(self, chunk: int, end: int, *, num_logits: int = NUM_LAST_TOKENS) -> int:
        """Beyond the states: what prefilling `chunk` tokens up to position `end` needs at once.

        `num_logits`: how many of them may have their logits computed: those of the chunk that ends a prompt, and every
        token of a prompt that is scored.
        """
        if chunk <= 0:
            return 0
        logits = self.logit_bytes * min(chunk, num_logits) + self.sample_bytes
        return max(self.chunk_bytes(chunk, end), self.chunk_bytes(min(chunk, num_logits), end) + logits)

    def chunk_bytes(self, chunk: int, end: int) -> int:
        """As `peak_bytes`, without any logits."""
        return self.step.bytes_at(chunk, end)

    def decode_bytes(self, num_rows: int, num_tokens: int) -> int:
        """Beyond the states: what a decode step of `num_rows` sequences of `num_tokens` each needs at once."""
        base = self.step.base_bytes
        row = self.step.bytes_at(1, num_tokens) - base + self.logit_bytes + self.sample_bytes
        return base + num_rows * row
