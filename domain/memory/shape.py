"""What a model needs of memory: its weights, the state of a sequence at any length, and what a step needs beyond both.

All in bytes. A cache's buffer is charged as it is allocated (`buffer_slots`). A windowed cache holds its window, and
while a chunk is prefilled the chunk beside it; a recurrent one is the same at every length. What a step needs beyond
the states is a plane over the chunk's length and the position it ends at, because every temporary of a layer has a row
for each token of the chunk, for each token it looks at, or for both.

A backend that runs ahead of the device holds the temporaries of many operations at once. Where prefill is held to so
many bytes of that (`AheadBound`), a chunk needs what one operation at a time takes, and the bound; never more than it
takes without one.
"""

from dataclasses import dataclass

from domain.memory.buffer_slots import buffer_slots
from domain.memory.score_cost import ScoreCost

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
    """What a forward pass needs beyond the states, once `base_bytes`, for each token it computes, for each token it
    looks at (a buffer that is copied while it grows), and for each pair of both (attention scores that no fused kernel
    spares). No more than `most_bytes` of `most_chunk` tokens at most, before `most_end`: of what MLX runs ahead only so
    much is there at once, and a plane knows of no such bound. 0: nothing is known."""

    base_bytes: int = 0
    token_bytes: int = 0
    seen_bytes: int = 0
    pair_bytes: int = 0
    most_bytes: int = 0
    most_chunk: int = 0
    most_end: int = 0

    def bytes_at(self, chunk: int, end: int) -> int:
        """Of `chunk` tokens, the last of which is the one before position `end`."""
        plane = self.base_bytes + chunk * (self.token_bytes + self.pair_bytes * end) + self.seen_bytes * end
        is_bounded = chunk <= self.most_chunk and end <= self.most_end
        return min(plane, self.most_bytes) if is_bounded else plane


@dataclass(frozen=True, slots=True)
class AheadBound:
    """How far prefill may run ahead of the device. `needed`: what it takes without running ahead at all, one operation
    after another; `num_bytes`: so much more may be alive, which is as many groups of operations as keep a device busy.
    """

    needed: StepCost
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShape:
    """One model. The default costs nothing: nobody estimated it.

    `states`: by state group, in the layout's order. `step`: of a forward pass without its logits, as far as the backend
    runs ahead of itself; `ahead`: what prefill is held to, None where nothing holds it. `logit_bytes`: for each token
    whose logits are computed. `sample_bytes`: for each token that is chosen from its logits. `scores`: what chunks of a
    few tokens have beside `step`.
    """

    weight_bytes: int = 0
    states: tuple[StateCost, ...] = ()
    step: StepCost = StepCost()
    logit_bytes: int = 0
    sample_bytes: int = 0
    ahead: AheadBound | None = None
    scores: ScoreCost = ScoreCost()

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
        free = self.free_bytes(chunk, end)
        if self.ahead is None:
            return free
        needed = self.ahead.needed.bytes_at(chunk, end) + self.scores.layer_bytes(chunk, end)
        return min(free, needed + self.ahead.num_bytes)

    def free_bytes(self, chunk: int, end: int) -> int:
        """As `chunk_bytes`, where nothing holds it: what all layers have may be there at once."""
        return self.step.bytes_at(chunk, end) + self.scores.num_layers * self.scores.layer_bytes(chunk, end)

    def held_ahead_bytes(self, chunk: int, end: int) -> int:
        """How much of `chunk_bytes` is the bound on running ahead; 0 where it is not reached, or there is none."""
        is_reached = self.ahead is not None and self.chunk_bytes(chunk, end) < self.free_bytes(chunk, end)
        return self.ahead.num_bytes if self.ahead is not None and is_reached else 0

    def decode_bytes(self, num_rows: int, num_tokens: int) -> int:
        """Beyond the states: what a decode step of `num_rows` sequences of `num_tokens` each needs at once. Decoding is
        held to nothing."""
        base = self.step.base_bytes
        row = self.step.bytes_at(1, num_tokens) - base + self.logit_bytes + self.sample_bytes
        return base + num_rows * row


__all__ = ("NUM_LAST_TOKENS", "AheadBound", "MemoryShape", "StateCost", "StepCost")
