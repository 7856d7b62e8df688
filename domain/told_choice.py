"""What was told of a choice before the engine that computed it was lost: another one goes on behind it.

The noise of token i is a function of (seed, i): the output is all that is needed to go on as if nothing had happened.
"""

from dataclasses import dataclass

from domain.explanation import Explanation


@dataclass(frozen=True, slots=True)
class ToldChoice:
    """`output_ids`: tokens put out. `explanation`: of its admission, None where that was not told. `num_prompt_done`:
    prompt tokens whose computing was told. `has_left_queue`: it was counted among those that did."""

    output_ids: tuple[int, ...] = ()
    explanation: Explanation | None = None
    num_prompt_done: int = 0
    has_left_queue: bool = False


__all__ = ("ToldChoice",)
