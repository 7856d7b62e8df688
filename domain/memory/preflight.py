"""Whether a request can ever be computed: alone, with everything let go of that can be, below the hard mark.

    hard mark |-- weights and other fixed bytes --|-------------- available --------------|
    prefill                                        |- state at the prompt's end -|-copy-|-chunk-|
    decode                                         |- state of every choice at its end --|-step-|

The copy is what the prefix cache keeps of a chunk. What does not fit by this sum never will, however long it waits;
what does is admitted when nothing else runs (`demand` never asks for more). Tokens that are reused take room like all
others. Every choice of an answer counts, because all of them may grow at once.
"""

from bisect import bisect
from dataclasses import dataclass, replace

from domain.memory.shape import MemoryShape


@dataclass(frozen=True, slots=True)
class Demand:
    """What one request asks for, in tokens. `is_scored`: log probabilities of the whole prompt are told, so that
    logits of every token are computed."""

    num_prompt: int
    num_new: int
    num_choices: int = 1
    is_scored: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why `demand` can never be computed, and what could be, in tokens: a prompt of `most_prompt` with an answer as
    long, and for this prompt an answer of `most_new`, 0 where the prompt is too long for any."""

    demand: Demand
    needed_bytes: int
    available_bytes: int
    limit_bytes: int
    most_prompt: int
    most_new: int


@dataclass(frozen=True, slots=True)
class Preflight:
    """Of one model in one engine. `fixed_bytes`: held whatever is let go of. `max_chunk`: tokens prefilled at once."""

    shape: MemoryShape
    limit_bytes: int
    fixed_bytes: int
    max_chunk: int

    @property
    def available_bytes(self) -> int:
        """For one request alone. Negative where what is fixed is too much already."""
        return self.limit_bytes - self.fixed_bytes

    def needed_bytes(self, demand: Demand) -> int:
        """The most that it takes at any moment. Never less for more tokens or choices."""
        shape, end = self.shape, demand.num_prompt + demand.num_new
        chunk = min(self.max_chunk, max(demand.num_prompt, 1))
        logits = {"num_logits": chunk} if demand.is_scored else {}
        prefill = shape.state_bytes(demand.num_prompt, chunk) + shape.state_bytes(chunk)
        prefill += shape.peak_bytes(chunk, demand.num_prompt, **logits)
        decode = demand.num_choices * shape.state_bytes(end) + shape.decode_bytes(demand.num_choices, end)
        return max(prefill, decode)

    def fits(self, demand: Demand) -> bool:
        return self.needed_bytes(demand) <= self.available_bytes

    def most_new(self, demand: Demand) -> int:
        """The longest answer up to the one asked for that fits; -1 when none does."""
        answers = range(demand.num_new + 1)
        return bisect(answers, False, key=lambda num_new: not self.fits(replace(demand, num_new=num_new))) - 1

    def most_prompt(self, demand: Demand) -> int:
        """The longest prompt up to the one asked for that fits with this answer; -1 for none."""
        prompts = range(demand.num_prompt + 1)
        return bisect(prompts, False, key=lambda num_prompt: not self.fits(replace(demand, num_prompt=num_prompt))) - 1

    def refusal(self, demand: Demand, shortest: int) -> Refusal | None:
        """None when it fits. `shortest`: tokens of an answer that is worth having. A prompt that is too long even for
        that is refused with it, so that prompt and answer together are more than what the refusal says would fit."""
        if self.fits(demand):
            return None
        most_new = max(self.most_new(demand), 0)
        if most_new < shortest:
            demand, most_new = replace(demand, num_new=min(shortest, demand.num_new)), 0
        return Refusal(
            demand,
            needed_bytes=self.needed_bytes(demand),
            available_bytes=max(self.available_bytes, 0),
            limit_bytes=self.limit_bytes,
            most_prompt=max(self.most_prompt(demand), 0),
            most_new=most_new,
        )
