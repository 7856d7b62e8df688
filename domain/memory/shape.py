"""The memory shape of a model: its weights, the state of a sequence at any length, and the cost of a step beyond both.

All values are bytes. A cache's buffer is charged as it is allocated (`buffer_slots`). A windowed cache holds its
window, and the chunk beside it while that is prefilled; a recurrent one is the same at every length. The cost of a step
is a plane over the chunk's length and the position it ends at, because every temporary of a layer has a row for each
token of the chunk, for each token it attends to, or for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from domain.chunking import PLAIN, Chunking
from domain.memory.kv_bits import KVBits

NUM_LAST_TOKENS = 512
"""The most tokens whose logits are computed at the end of a prompt (`StepLimits.max_last_chunk` of any device)."""

SPARE_SHARE = 16
"""A buffer has fewer spare slots than this fraction (one divided by it) of its tokens, or than one step."""


def buffer_slots(num_tokens: int, step: int) -> int:
    """Returns the token slots of a full KV buffer of `num_tokens`. `step`: a power of two, by which short buffers grow;
    1: exactly as many.

    A full buffer is copied into a larger one, so longer ones grow by the largest power of two in a sixteenth of their
    length. The number follows from `num_tokens` alone: kernels may choose their order of summation by it.
    """
    if step > 1:
        step = max(step, 1 << (num_tokens // SPARE_SHARE).bit_length() >> 1)
    return -(-num_tokens // step) * step


@dataclass(frozen=True, slots=True)
class StateCost:
    """The memory of one state group in one sequence.

    `bytes_per_token`: over all leaves of the group. `window`: tokens it looks back; None keeps all. `fixed_bytes`: at
    any length, as in recurrent states. `step`: tokens by which its buffers grow while short.
    """

    bytes_per_token: int
    window: int | None = None
    fixed_bytes: int = 0
    step: int = 256

    @property
    def is_cut_back(self) -> bool:
        """True if the state goes back to fewer tokens in place, as full KV does."""
        return self.window is None and not self.fixed_bytes

    def held_bytes(self, num_tokens: int, chunk: int = 0) -> int:
        """Returns the bytes of `num_tokens`, of which the last `chunk` were prefilled at once."""
        if num_tokens <= 0:
            return 0
        held = buffer_slots(num_tokens, self.step)
        if self.window is not None:
            held = min(held, self.window + chunk)
        return self.fixed_bytes + self.bytes_per_token * held


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """The bytes of a forward pass beyond the states: once (`base_bytes`), for each token that it computes, for each
    token that it attends to (`seen_bytes`: copies of keys and values), and for each pair of both (scores without a
    fused kernel)."""

    base_bytes: int = 0
    token_bytes: int = 0
    seen_bytes: int = 0
    pair_bytes: float = 0

    def near_bytes(self, chunk: int) -> int:
        """Returns the cost of `chunk` tokens at any position."""
        return self.base_bytes + chunk * self.token_bytes

    def deep_bytes(self, chunk: int, end: int) -> int:
        """Returns the additional cost of the tokens up to position `end`."""
        return round((self.seen_bytes + chunk * self.pair_bytes) * end)

    def bytes_at(self, chunk: int, end: int) -> int:
        """Returns the cost of the `chunk` tokens before position `end`."""
        return self.near_bytes(chunk) + self.deep_bytes(chunk, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseKV:
    """Keys and values of full attention that are kept as they are computed, and could be kept in fewer bits
    (`KVBits`): bytes of a token in all layers, and in the largest one. `item_bytes`: of a number."""

    token_bytes: int = 0
    layer_bytes: int = 0
    item_bytes: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageCost:
    """The memory of images, by the tokens that they have in the prompt: `prepared_bytes` of pixels and `feature_bytes`
    a token. `tower`: a tower pass over one image, by its tokens, without both."""

    prepared_bytes: int = 0
    feature_bytes: int = 0
    tower: StepCost = StepCost()


class ImageSizes(NamedTuple):
    """The images of a prompt that take memory, in tokens: `largest`, and `held`: all whose pixels are held at once."""

    largest: int = 0
    held: int = 0

    @classmethod
    def of(cls, lengths: Sequence[int], ahead: int) -> "ImageSizes":
        """`lengths`: of the images. `ahead`: the number of tokens before an image at which it is prepared."""
        # Within `ahead` tokens lie images of `ahead` tokens at most, and of one at each end only a part.
        largest = max(lengths, default=0)
        return cls(largest, min(sum(lengths), 2 * largest + ahead))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShape:
    """The memory shape of one model. The default costs nothing: it was not estimated.

    `states`: by state group, in the layout's order. `step`: a forward pass without its logits. `logit_bytes`: for each
    token whose logits are computed. `sample_bytes`: for each token that is chosen from its logits. `image`: of images.
    `dense_kv`: what of the first state could be smaller; nothing where it is already.
    `chunking`: the rule by which its chunks are shorter than others.
    """

    weight_bytes: int = 0
    states: tuple[StateCost, ...] = ()
    step: StepCost = StepCost()
    logit_bytes: int = 0
    sample_bytes: int = 0
    image: ImageCost = ImageCost()
    chunking: Chunking = PLAIN
    dense_kv: DenseKV = DenseKV()

    def with_kv(self, bits: KVBits) -> "MemoryShape":
        """The estimate with keys and values of full attention in `bits`; the same where there are none to quantise. A
        chunk dequantises those of one layer."""
        dense = self.dense_kv
        if not dense.token_bytes:
            return self
        first, *others = self.states
        saved = dense.token_bytes - round(dense.token_bytes // dense.item_bytes * bits.num_bytes(dense.item_bytes))
        smaller = replace(first, bytes_per_token=first.bytes_per_token - saved)
        step = replace(self.step, seen_bytes=self.step.seen_bytes + dense.layer_bytes)
        return replace(self, states=(smaller, *others), step=step, dense_kv=DenseKV())

    def feature_bytes(self, num_image: int, chunk: int) -> int:
        """Returns the bytes of the features that a chunk uses of images of at most `num_image` tokens that begin in it:
        as many as it has tokens, and the rest of the last."""
        return self.image.feature_bytes * (num_image + chunk) if num_image else 0

    def tower_bytes(self, num_image: int, chunk: int) -> int:
        """Returns the peak beyond states and pixels while the tower passes over such an image, with these features."""
        tower = self.image.tower.bytes_at(num_image, num_image)
        return tower + self.feature_bytes(num_image, chunk) if num_image else 0

    def pixel_bytes(self, num_tokens: int) -> int:
        """Returns the bytes of the pixels of images with `num_tokens` together."""
        return self.image.prepared_bytes * num_tokens

    def state_bytes(self, num_tokens: int, chunk: int = 0) -> int:
        """Returns the bytes of one sequence's caches at this length. `chunk`: number of tokens prefilled last."""
        return sum(state.held_bytes(num_tokens, chunk) for state in self.states)

    @property
    def token_bytes(self) -> int:
        """The bytes of one token's part of the states, without what is the same at any length."""
        return sum(state.bytes_per_token for state in self.states)

    def copy_bytes(self, num_tokens: int) -> int:
        """Returns the bytes of the prefix cache's copies of a chunk of `num_tokens`: blocks, and one snapshot."""
        # Each block keeps its own part of a window, so a window bounds no copy. Spare slots of buffers are not copied.
        return sum(state.fixed_bytes + state.bytes_per_token * num_tokens for state in self.states)

    def peak_bytes(self, chunk: int, end: int, *, num_logits: int = NUM_LAST_TOKENS) -> int:
        """Returns the peak beyond the states while `chunk` tokens up to position `end` are prefilled.

        `num_logits`: most of them whose logits are computed: the chunk that ends a prompt, and every token of a prompt
        that is scored.
        """
        if chunk <= 0:
            return 0
        logits = self.logit_bytes * min(chunk, num_logits) + self.sample_bytes
        return max(self.chunk_bytes(chunk, end), self.chunk_bytes(min(chunk, num_logits), end) + logits)

    def chunk_bytes(self, chunk: int, end: int) -> int:
        """Returns the peak as `peak_bytes`, without any logits. It never falls with `end`: chunks that are shorter
        where the prompt is deep count as those before them."""
        return max(self.step.bytes_at(length, last) for length, last in self.chunking.widest(chunk, end))

    def decode_bytes(self, num_rows: int, num_tokens: int, width: int = 1) -> int:
        """Returns the peak beyond the states of a decode step of `num_rows` sequences of `num_tokens` each. `width`:
        tokens that it computes of each: one, and a draft's. Positions are sampled one after the other. States that
        cannot be cut back are kept beside the new ones while a draft is verified."""
        # All rows share what a pass takes once, and each has its own temporaries and logits.
        base = self.step.base_bytes
        row = self.step.bytes_at(width, num_tokens) - base + width * self.logit_bytes + self.sample_bytes
        if width > 1:
            row += sum(state.held_bytes(num_tokens, width) for state in self.states if not state.is_cut_back)
        return base + num_rows * row
