"""Prompts as the engine takes them, and the grid by which they are cut for hashing, prefill and resuming.

    tokens   0        256       512       768      1024
    blocks   |────────|─────────|─────────|─────────|     unit of hashing and storing
    steps    |──────────────────|───────────────────|     unit of prefill: chunks begin at multiples of `step`

A state computed in whole steps from the start has the same bits every time. A state that is resumed elsewhere continues
with a chunk of another shape, and then equals recomputing only up to rounding.

The content of a prompt is not always the tokens that are fed: an image is many equal placeholders. The prefix cache
compares *key ids*: token ids for text, and ids above every vocabulary, derived from the image's digest, for images.

    token ids   Look at <img> <img> <img> <img> : what
    key ids     Look at  k0    k1    k2    k3   : what         k_i >= 2**31
    media                |------ span -------|
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import shake_256

from domain.chunking import PLAIN, Chunking
from domain.id_row import ID_BYTES, IdRow


@dataclass(frozen=True, slots=True)
class BlockGrid:
    """Settings, in tokens; `step` is a multiple of `block_size`. `is_exact`: resume at multiples of `step` only, where
    what follows is bit-identical to recomputing. `chunking`: the rule by which a step is computed in parts."""

    block_size: int
    step: int
    is_exact: bool = False
    chunking: Chunking = PLAIN

    def of_model(self, chunking: Chunking) -> "BlockGrid":
        """Returns the grid of a model with this rule."""
        return replace(self, step=chunking.step(self.step), chunking=chunking)

    def is_whole_chunk(self, start: int, end: int) -> bool:
        """Returns whether the tokens from `start` to `end` are a chunk of every prompt that is long enough."""
        length = self.chunking.length_at(start, self.step)
        return start % length == 0 and end == start + length

    def chunk_end(self, position: int) -> int:
        """Returns the end of the whole chunk that `position` lies in."""
        length = self.chunking.length_at(position, self.step)
        return (position // length + 1) * length

    def is_resumable(self, position: int) -> bool:
        return not self.is_exact or position % self.step == 0

    def last_resumable(self, position: int) -> int:
        """Returns the last resumable position at or before `position`."""
        return position // self.step * self.step if self.is_exact else position

    def furthest(self, num_prompt: int) -> int:
        """Returns the position at which a prompt resumes when everything is kept. Its last token is always computed."""
        return self.last_resumable(num_prompt - 1)


class ForkKind(Enum):
    """The reason for which a later request is likely to branch off here; earlier members matter more."""

    NEXT_TURN = "next_turn"
    MORE_SAID = "more_said"
    """Just before the answer, where the last message may be continued."""
    SYSTEM_END = "system_end"
    TURN = "turn"


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A token position in a rendered prompt (0 < position <= its length)."""

    position: int
    kind: ForkKind


FIRST_MEDIA_ID = 1 << 31
"""The key ids from here on stand for images; every vocabulary ends before."""

_AS_MEDIA = bytes(value | 0x80 for value in range(256))


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """An image in a prompt: `length` tokens from the position `start` on. Positions decide where an image is, never
    ids: a client may spell a placeholder in a text.

    `digest`: 32 bytes over all that the model sees of the image. `embedded`: the runs [start, end), relative to the
    span, whose tokens get the image's features, in order; the others are markers, fed like text. Empty for all.
    `grid`: frames, rows and columns of a model with three positions a token; None for one position a token. `number`: 1
    for the prompt's first image.
    """

    start: int
    length: int
    digest: bytes
    embedded: tuple[tuple[int, int], ...] = ()
    grid: tuple[int, int, int] | None = None
    number: int = 1

    @property
    def end(self) -> int:
        return self.start + self.length

    @property
    def shift(self) -> int:
        """The number by which positions after the image are behind the number of tokens: with a grid, an image takes as
        many positions as its longest side."""
        return self.length - max(self.grid) if self.grid is not None else 0

    def key_ids(self) -> IdRow:
        """Returns an id for each token. Their first bits only: what must not be forged compares digests too."""
        data = bytearray(shake_256(self.digest).digest(ID_BYTES * self.length))
        data[ID_BYTES - 1 :: ID_BYTES] = data[ID_BYTES - 1 :: ID_BYTES].translate(_AS_MEDIA)
        return IdRow.of_bytes(data)


AHEAD_CHUNKS = 2
"""Images are prepared this number of grid lines before the computed part of a prompt reaches them: at least as far as a
chunk reaches (the rest of a prompt that was resumed off the grid ends behind the next line)."""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for the engine. `fork_points`: those found in it, ascending, one a position. `media`: its images,
    ascending, without overlap."""

    token_ids: IdRow
    fork_points: tuple[ForkPoint, ...] = ()
    media: tuple[MediaSpan, ...] = ()

    @classmethod
    def of_text(cls, token_ids: Iterable[int], fork_points: Sequence[ForkPoint] = ()) -> "EncodedPrompt":
        """Raises ValueError for values that are no token ids: see `IdRow`."""
        return cls(IdRow(token_ids), tuple(fork_points))

    def followed_by(self, token_ids: Iterable[int]) -> "EncodedPrompt":
        """Returns the prompt with more tokens appended."""
        return replace(self, token_ids=self.token_ids.followed_by(token_ids))

    @property
    def key_ids(self) -> IdRow:
        """The ids that the prefix cache compares: the token ids, and each image's own where it stands."""
        if not self.media:
            return self.token_ids
        rows, at = list[IdRow](), 0
        for span in self.media:
            rows += [self.token_ids[at : span.start], span.key_ids()]
            at = span.end
        return IdRow.joined((*rows, self.token_ids[at:]))
