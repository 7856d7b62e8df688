"""A constraint that outlives the state its sequence is computed in, and knows how far it has come.

A backend tells it each token that it feeds. Who goes on after a preemption has put out what was not fed any more:
`catch_up` tells it that, and the next backend finds it where the output ends.
"""

from collections.abc import Sequence

from application.ports.token_constraint import AllowedTokens, TokenConstraint


class FollowedConstraint:
    """A TokenConstraint."""

    __slots__ = ("_inner", "_num_accepted")

    def __init__(self, inner: TokenConstraint) -> None:
        self._inner = inner
        self._num_accepted = 0

    def poll(self) -> bool:
        return self._inner.poll()

    def allowed(self) -> AllowedTokens:
        return self._inner.allowed()

    def accept(self, token_id: int) -> None:
        self._inner.accept(token_id)
        self._num_accepted += 1

    def catch_up(self, output_ids: Sequence[int]) -> None:
        """Accept what it was not told yet. Raises as `accept`."""
        for token_id in output_ids[self._num_accepted :]:
            self.accept(token_id)


__all__ = ("FollowedConstraint",)
