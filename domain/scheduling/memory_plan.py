"""The memory that a model would need on a machine, before it is loaded.

This is the worst case of `needs`: sequences share no memory, all are at the end of their contexts, and one of them
prefills its last chunk while the others decode.
"""

from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace

from domain.memory.kv_bits import smaller_forms
from domain.memory.ledger import MemoryLimits
from domain.memory.needs import Load, needed
from domain.memory.shape import ImageSizes, MemoryShape
from domain.models.model_card import ContextLength
from domain.models.state_layout import StateLayout

IMAGE_TOKENS = 1024
"""The tokens of the image that is planned for: a screenshot or a photograph for most models."""

MOST_SEQUENCES = 1024
"""The upper bound of the search for the number of sequences."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model that is not loaded. `has_weights`: its files are here, and the weight bytes are theirs. `expert_bytes`:
    of the experts among the weights."""

    model_type: str
    context: ContextLength
    layout: StateLayout
    memory: MemoryShape
    has_weights: bool = True
    expert_bytes: int = 0

    @property
    def context_length(self) -> int:
        return self.context.length


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory plan of one model. `context`: tokens of each sequence, prompt and answer together. `batch`: number of
    sequences at once. `chunk`: most tokens that one step prefills. `limits` None: memory is not bounded."""

    shape: MemoryShape
    context: int
    batch: int
    chunk: int
    limits: MemoryLimits | None = None

    @property
    def sequence_bytes(self) -> int:
        """The state of one sequence at its end."""
        return needed(self.shape, Load(self.context, chunk=self.chunk)).kept

    @property
    def prefill_bytes(self) -> int:
        """The peak of the last chunk of one prompt beyond the states."""
        return self.shape.peak_bytes(min(self.chunk, self.context), self.context)

    @property
    def decode_bytes(self) -> int:
        """The peak of one decode step of all sequences beyond the states."""
        return self.shape.decode_bytes(self.batch, self.context)

    @property
    def image_bytes(self) -> int:
        """The peak of one image beyond the states, before its chunk; 0 for a model that does not see."""
        tokens = min(IMAGE_TOKENS, self.context)
        return self.shape.tower_bytes(tokens, self.chunk) + self.shape.pixel_bytes(tokens)

    @property
    def snapshot_bytes(self) -> int:
        """The size of the snapshot of one exact position, without the tokens of the block around it."""
        return sum(state.fixed_bytes for state in self.shape.states)

    @property
    def needed_bytes(self) -> int:
        """The sum of weights, states and one step, as preflight and admission count them."""
        images = ImageSizes(IMAGE_TOKENS, IMAGE_TOKENS)
        load = Load(self.context, chunk=self.chunk, num_beside=self.batch - 1, images=images)
        return self.shape.weight_bytes + needed(self.shape, load).total

    @property
    def fits(self) -> bool:
        return self.limits is None or self.needed_bytes <= self.limits.hard_bytes

    def longest(self, most: int) -> int:
        """Returns the longest context up to `most` that fits with this batch; 0 for none."""
        return bisect(range(1, most + 1), False, key=lambda context: not replace(self, context=context).fits)

    def most_sequences(self) -> int:
        """Returns how many sequences of this context fit; 0 for none."""
        return bisect(range(1, MOST_SEQUENCES + 1), False, key=lambda batch: not replace(self, batch=batch).fits)

    def smaller_kv(self) -> Iterator[tuple[str, "MemoryPlan"]]:
        """Yields the plans with keys and values in fewer bits, by the setting `model.kv_bits`; nothing for a model that
        has none to quantise, or keeps them so."""
        if self.shape.dense_kv.token_bytes:
            for text, bits in smaller_forms():
                yield text, replace(self, shape=self.shape.with_kv(bits))
