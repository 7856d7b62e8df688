"""The check whether a request can ever be computed: alone, with all kept state evicted, below the hard mark.

    hard mark |-- weights and other fixed bytes --|-------------- available --------------|
    request                                       |------------ needed (`needs`) -------------|

A request that does not fit by this sum never will, however long it waits. One that fits is admitted when nothing else
runs, because admission asks for the same sum with a shorter answer, or for the charge, which is a part of it
(`memory_demand`).
"""

from bisect import bisect
from dataclasses import dataclass, replace

from domain.memory.kv_bits import KVBits, smaller_forms
from domain.memory.needs import Load, needed
from domain.memory.shape import MemoryShape


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why `load` can never be computed, and the longest prompt that could be with the same answer, in
    tokens. `kv_bits`: the value of model.kv_bits with the most bits by which it could; empty for none."""

    load: Load
    needed_bytes: int
    available_bytes: int
    limit_bytes: int
    most_prompt: int
    kv_bits: str = ""


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

    def refusal(self, load: Load) -> Refusal | None:
        """Returns None when the request fits. `load`: with the shortest useful answer."""
        if self.fits(load):
            return None
        return Refusal(
            load,
            needed_bytes=self.needed_bytes(load),
            available_bytes=max(self.available_bytes, 0),
            limit_bytes=self.limit_bytes,
            most_prompt=max(self.most_prompt(load), 0),
            kv_bits=next((text for text, bits in smaller_forms() if self._with_kv(bits).fits(load)), ""),
        )

    def _with_kv(self, bits: KVBits) -> "Preflight":
        return replace(self, shape=self.shape.with_kv(bits))
