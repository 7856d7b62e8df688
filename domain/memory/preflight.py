"""The check whether a request can ever be computed: alone, with all kept state evicted, below the hard mark.

    hard mark |-- weights and other fixed bytes --|-------------- available --------------|
    prefill                                        |- state at the prompt's end -|-copy-|-chunk-|
    image                                          |- the same -|- pixels, features, tower pass -|
    decode                                         |- state of every choice at its end --|-step-|

The copy is made by the prefix cache. A request that does not fit by this sum never will, however long it waits; one
that fits is admitted when nothing else runs (`memory_demand` never asks for more). Reused tokens take memory like all
others. Every choice of an answer counts, because all of them may grow at once.
"""

from bisect import bisect
from dataclasses import dataclass, replace

from domain.memory.shape import ImageSizes, MemoryShape


@dataclass(frozen=True, slots=True)
class Demand:
    """The size of one request in tokens. `is_scored`: log probabilities of the whole prompt are returned, so that the
    logits of every token are computed."""

    num_prompt: int
    num_new: int
    num_choices: int = 1
    is_scored: bool = False
    images: ImageSizes = ImageSizes()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why `demand` can never be computed, and the sizes in tokens that could be: a prompt of `most_prompt`
    with the same answer, or an answer of `most_new` to the same prompt, 0 where the prompt is too long for any."""

    demand: Demand
    needed_bytes: int
    available_bytes: int
    limit_bytes: int
    most_prompt: int
    most_new: int


@dataclass(frozen=True, slots=True)
class Preflight:
    """The check for one model in one engine. `fixed_bytes`: memory that cannot be evicted. `max_chunk`: most tokens
    that are prefilled at once; an image that no chunk may cut may be longer."""

    shape: MemoryShape
    limit_bytes: int
    fixed_bytes: int
    max_chunk: int
    image_is_whole: bool = False

    @property
    def available_bytes(self) -> int:
        """The memory for one request alone; negative where the fixed bytes exceed the limit."""
        return self.limit_bytes - self.fixed_bytes

    def needed_bytes(self, demand: Demand) -> int:
        """Returns the peak memory of a request; it never falls with more tokens or choices."""
        shape, end = self.shape, demand.num_prompt + demand.num_new
        num_image = min(demand.images.largest, demand.num_prompt)
        chunk = min(max(self.max_chunk, num_image * self.image_is_whole), max(demand.num_prompt, 1))
        logits = {"num_logits": chunk} if demand.is_scored else {}
        prefill = shape.state_bytes(demand.num_prompt, chunk) + shape.state_bytes(chunk)
        prefill += shape.peak_bytes(chunk, demand.num_prompt, **logits) + shape.feature_bytes(num_image, chunk)
        prefill = max(prefill, shape.state_bytes(demand.num_prompt, chunk) + shape.tower_bytes(num_image, chunk))
        # Beside them are the pixels of those to come, and the features of one that began before the chunk.
        prefill += shape.pixel_bytes(min(demand.images.held, demand.num_prompt)) + shape.feature_bytes(num_image, 0)
        decode = demand.num_choices * shape.state_bytes(end) + shape.decode_bytes(demand.num_choices, end)
        return max(prefill, decode)

    def fits(self, demand: Demand) -> bool:
        return self.needed_bytes(demand) <= self.available_bytes

    def most_new(self, demand: Demand) -> int:
        """Returns the longest answer that fits, up to the requested one; -1 for none."""
        answers = range(demand.num_new + 1)
        return bisect(answers, False, key=lambda num_new: not self.fits(replace(demand, num_new=num_new))) - 1

    def most_prompt(self, demand: Demand) -> int:
        """Returns the longest prompt that fits with this answer, up to the requested one; -1 for none."""
        prompts = range(demand.num_prompt + 1)
        return bisect(prompts, False, key=lambda num_prompt: not self.fits(replace(demand, num_prompt=num_prompt))) - 1

    def refusal(self, demand: Demand, shortest: int) -> Refusal | None:
        """Returns None when the request fits. `shortest`: tokens of the shortest useful answer. A prompt that is too
        long even for that one is refused together with it, so that their sum exceeds the sizes in the refusal."""
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
