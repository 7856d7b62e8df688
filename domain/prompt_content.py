"""What a prompt consists of, to the model and to the prefix cache.

An image reaches the model as a run of equal placeholder tokens, which say nothing about the image. So a prompt has two
rows of ids of equal length, and everything about reuse looks at the second:

    token_ids   12  7  [img] [img] [img]  31    fed to the model
    key_ids     12  7   k0    k1    k2    31    hashed, compared, stored, explained

For text there is one row. Where media stand, key ids are derived from their digest and lie above the vocabulary. They
are too short to tell media apart for certain, so the full digests enter the hashes as well.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from domain.fork_point import ForkPoint
from domain.id_row import IdRow

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Media:
    """An image or a sound that stands at the tokens from `start` to before `end`. `digest`: SHA-256 of its content."""

    start: int
    end: int
    digest: bytes

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"media stand from token {self.start} to {self.end}")
        if len(self.digest) != DIGEST_BYTES:
            raise ValueError(f"a media digest has {len(self.digest)} bytes and must have {DIGEST_BYTES}")


@dataclass(frozen=True, slots=True)
class PromptContent:
    """See the module docstring. `own_keys`: the key ids where they are not the token ids. `media`: ascending, without
    overlap."""

    token_ids: IdRow
    own_keys: IdRow | None = None
    media: tuple[Media, ...] = ()

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.key_ids):
            raise ValueError(f"{len(self.token_ids)} token ids and {len(self.key_ids)} key ids")
        ends = [0, *(one.end for one in self.media)]
        if any(one.start < end for one, end in zip(self.media, ends, strict=False)) or ends[-1] > len(self.token_ids):
            raise ValueError("media overlap, or stand outside of the prompt")

    @classmethod
    def of_text(cls, token_ids: Iterable[int]) -> "PromptContent":
        """Raises ValueError for what is no token id: see `IdRow`."""
        return cls(IdRow(token_ids))

    @property
    def key_ids(self) -> IdRow:
        return self.token_ids if self.own_keys is None else self.own_keys

    def followed_by(self, token_ids: Iterable[int]) -> "PromptContent":
        """The same with text behind it. Raises as `of_text`."""
        text = IdRow(token_ids)
        own_keys = None if self.own_keys is None else self.own_keys.followed_by(text)
        return PromptContent(self.token_ids.followed_by(text), own_keys, self.media)

    def media_within(self, start: int, end: int) -> tuple[Media, ...]:
        """See `media_between`."""
        return media_between(self.media, start, end)


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt ready for the engine, and the fork points found in it, ascending, one a position. `rewrites`: names of
    the rules (`domain/prompt_rewrite`) that changed it before it was rendered."""

    content: PromptContent
    fork_points: tuple[ForkPoint, ...] = ()
    rewrites: tuple[str, ...] = ()

    @classmethod
    def of_text(cls, token_ids: Iterable[int], fork_points: Sequence[ForkPoint] = ()) -> "EncodedPrompt":
        """Raises as `PromptContent.of_text`."""
        return cls(PromptContent.of_text(token_ids), tuple(fork_points))

    @property
    def token_ids(self) -> IdRow:
        """What the model is fed."""
        return self.content.token_ids

    def followed_by(self, token_ids: Iterable[int]) -> "EncodedPrompt":
        """The same with text behind it."""
        return EncodedPrompt(self.content.followed_by(token_ids), self.fork_points)


def media_between(media: Sequence[Media], start: int, end: int) -> tuple[Media, ...]:
    """The parts of media that stand in the tokens [start, end), with positions counted from `start`."""
    return tuple(
        Media(max(one.start, start) - start, min(one.end, end) - start, one.digest)
        for one in media
        if max(one.start, start) < min(one.end, end)
    )


def digests_of(media: Sequence[Media]) -> bytes:
    """What media add to a hash, in order; nothing for text."""
    return b"".join(one.digest for one in media)


__all__ = ("DIGEST_BYTES", "EncodedPrompt", "Media", "PromptContent", "digests_of", "media_between")
