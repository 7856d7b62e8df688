"""What a model needs of memory: its weights, the state of a sequence at any length, and what a step needs beyond both.

All in bytes. A cache's buffer grows in steps and is charged as it is allocated. A windowed cache holds its window, and
while a chunk is prefilled the chunk beside it; a recurrent one is the same at every length. What a step needs beyond
the states is what its widest layer needs at once, because a layer's temporaries are freed before the next one's.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StateCost:
    """What one state group costs a sequence.

    `bytes_per_token`: over all leaves of the group. `window`: tokens it looks back; None where it keeps all.
    `fixed_bytes`: whatever its length is, as in recurrent states. `step`: tokens its buffers grow by.
    """

    bytes_per_token: int
    window: int | None = None
    fixed_bytes: int = 0
    step: int = 256

    def held_bytes(self, num_tokens: int, chunk: int = 0) -> int:
        """Of one sequence of `num_tokens`, whose last `chunk` tokens were prefilled at once."""
        if num_tokens <= 0:
            return 0
        held = num_tokens if self.window is None else min(num_tokens, self.window + chunk)
        return self.fixed_bytes + self.bytes_per_token * _rounded_up(held, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShape:
    """One model. The default costs nothing: nobody estimated it.

    `states`: by state group, in the layout's order. `score_bytes`: of the attention of the widest layer, for each pair
    of a token and one it looks at; 0 where a fused kernel keeps none. `score_window`: how far that layer looks back.
    `activation_bytes`: of the widest layer, for each token of a chunk. `logit_bytes`: for each token whose logits are
    computed, the copies that sampling makes included. `grown_bytes`: for each token already held, copied while the
    largest buffer grows.
    """

    weight_bytes: int = 0
    states: tuple[StateCost, ...] = ()
    score_bytes: int = 0
    score_window: int | None = None
    activation_bytes: int = 0
    logit_bytes: int = 0
    grown_bytes: int = 0

    def state_bytes(self, num_tokens: int, chunk: int = 0) -> int:
        """The live caches of one sequence at this length. `chunk`: how many tokens were prefilled last."""
        return sum(state.held_bytes(num_tokens, chunk) for state in self.states)

    def peak_bytes(self, chunk: int, end: int, *, num_logits: int = 32) -> int:
        """Beyond the states: what prefilling `chunk` tokens up to position `end` needs at once.

        `num_logits`: how many of them may have their logits computed; all of them where the prompt is scored.
        """
        if chunk <= 0:
            return 0
        seen = end if self.score_window is None else min(end, self.score_window + chunk)
        layer = chunk * (self.activation_bytes + self.score_bytes * seen) + self.grown_bytes * end
        return layer + self.logit_bytes * min(chunk, num_logits)

    def decode_bytes(self, num_rows: int, num_tokens: int) -> int:
        """Beyond the states: what a decode step of `num_rows` sequences of `num_tokens` each needs at once."""
        seen = num_tokens if self.score_window is None else min(num_tokens, self.score_window)
        row = self.activation_bytes + self.logit_bytes + self.score_bytes * seen + self.grown_bytes * num_tokens
        return num_rows * row


def _rounded_up(count: int, step: int) -> int:
    return -(-count // step) * step


__all__ = ("MemoryShape", "StateCost")
