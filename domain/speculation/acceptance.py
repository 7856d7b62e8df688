"""The moving probability that a drafted token is what the model samples."""

WEIGHT = 1 / 16
"""The share of one observation in the estimate. A larger one ends drafting by chance where it pays."""

HEAD_PRIOR = 0.6
"""The first estimate for a multi-token-prediction head or a draft model."""


class Acceptance:
    """The estimated probability that a drafted position is accepted, given that all before it were: an exponential
    average over the last positions. One for each sequence and drafter. Not thread-safe. `prior`: the first estimate."""

    __slots__ = ("probability",)

    def __init__(self, prior: float = HEAD_PRIOR) -> None:
        self.probability = prior

    def observe(self, num_proposed: int, num_accepted: int) -> None:
        """Takes a verified draft into account: its accepted positions, and the first rejected one if there is one."""
        for _ in range(num_accepted):
            self.probability += WEIGHT * (1 - self.probability)
        if num_accepted < num_proposed:
            self.probability -= WEIGHT * self.probability
