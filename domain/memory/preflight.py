"""The check whether a request can ever be computed: alone, with all kept state evicted, below the hard mark.

    hard mark |-- weights and other fixed bytes --|-------------- available --------------|
    request                                       |------------ needed (`needs`) -------------|

A request that does not fit by this sum never will, however long it waits. One that fits is admitted when nothing else
runs, because admission asks for the same sum with a shorter answer, or for the charge, which is a part of it
(`memory_demand`).
"""

from bisect import bisect
from dataclasses import dataclass, replace

from domain.memory.needs import Load, needed
from domain.memory.shape import MemoryShape


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why `load` can never be computed, and the sizes in tokens that could be: a prompt of `most_prompt`
    with the same answer, or an answer of `most_new` to the same prompt, 0 where the prompt is too long for any."""

    load: Load
    needed_bytes: int
    available_bytes: int
    limit_bytes: int
    most_prompt: int
    most_new: int


@dataclass(frozen=True, slots=True)
class Preflight:
    """The check for one model in one engine. `fixed_bytes`: memory that cannot be evicted."""

    shape: MemoryShape
    limit_bytes: int
    fixed_bytes: int

    @property
    def available_bytes(self) -> int:
        """The memory for one request alone; negative where the fixed bytes exceed the limit."""
        return self.limit_bytes - self.fixed_bytes

    def needed_bytes(self, load: Load) -> int:
        return needed(self.shape, load).total

    def fits(self, load: Load) -> bool:
        return self.needed_bytes(load) <= self.available_bytes

    def most_new(self, load: Load) -> int:
        """Returns the longest answer that fits, up to the requested one; -1 for none."""
        answers = range(load.num_new + 1)
        return bisect(answers, False, key=lambda num_new: not self.fits(replace(load, num_new=num_new))) - 1

    def most_prompt(self, load: Load) -> int:
        """Returns the longest prompt that fits with this answer, up to the requested one; -1 for none."""
        prompts = range(load.num_prompt + 1)
        return bisect(prompts, False, key=lambda num_prompt: not self.fits(replace(load, num_prompt=num_prompt))) - 1

    def refusal(self, load: Load, shortest: int) -> Refusal | None:
        """Returns None when the request fits. `shortest`: tokens of the shortest useful answer. A prompt that is too
        long even for that one is refused together with it, so that their sum exceeds the sizes in the refusal."""
        if self.fits(load):
            return None
        most_new = max(self.most_new(load), 0)
        if most_new < shortest:
            load, most_new = replace(load, num_new=min(shortest, load.num_new)), 0
        return Refusal(
            load,
            needed_bytes=self.needed_bytes(load),
            available_bytes=max(self.available_bytes, 0),
            limit_bytes=self.limit_bytes,
            most_prompt=max(self.most_prompt(load), 0),
            most_new=most_new,
        )
