"""The vision port: images that are processed for a prompt, and turned into features.

    text side                                            token side
    process: file ► ImageTokens, PreparedImage ──asked for──► encode_image: PreparedImage ► ImageFeatures (compute port)

Files stay on the text side, where processes that hold nothing else decode them. The arrays of an image cross the engine
port when the token side asks for them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

from domain.id_row import IdRow
from domain.models.model_card import ModelSource
from domain.prefix.prompt_content import EncodedPrompt, MediaSpan
from domain.request.media import Image


@dataclass(frozen=True, slots=True)
class Pixels:
    """A decoded image: 8-bit RGB, row by row from the top, three bytes a pixel."""

    width: int
    height: int
    rgb: bytes


DecodeImage: TypeAlias = Callable[[bytes, str], Pixels]
"""Decodes an image file. Any thread; blocking. Raises InvalidRequest that names the field (the second argument), for a
file that is no image or beyond the limits."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """The tokens of one image in a prompt of one model.

    `token_ids`: what replaces the placeholder, including markers of rows and columns. `digest`: 32 bytes over all that
    the model sees: the image's digest, the processor's settings and its version; equal digests have equal tokens and
    features. `embedded`: the runs [start, end) of `token_ids` that get features in place of their embeddings, in order;
    empty for all. `grid`: frames, rows and columns of a model with three positions a token; None for one position.
    """

    token_ids: IdRow
    digest: bytes
    embedded: tuple[tuple[int, int], ...] = ()
    grid: tuple[int, int, int] | None = None

    def placed(self, start: int, number: int) -> MediaSpan:
        """Returns the span of the image in a prompt. `number`: 1 for the prompt's first image."""
        return MediaSpan(start, len(self.token_ids), self.digest, self.embedded, self.grid, number)


@dataclass(frozen=True, slots=True)
class ImageRows:
    """The tokens of a prompt's images, by the digest of each Image. `placeholder`: as of the ImageProcessor."""

    placeholder: str
    tokens: Mapping[bytes, ImageTokens]

    def put_into(self, prompt: EncodedPrompt, placeholder_id: int, images: Sequence[Image]) -> EncodedPrompt:
        """Returns the prompt with the tokens of each image in place of its placeholder, in order. Raises ValueError if
        the prompt has another number of placeholders."""
        places = [at for at, id in enumerate(prompt.token_ids) if id == placeholder_id]
        rows, spans, forks, start, num_added = list[IdRow](), list[MediaSpan](), list(prompt.fork_points), 0, 0
        for number, (place, image) in enumerate(zip(places, images, strict=True), 1):
            tokens = self.tokens[image.digest]
            rows += [prompt.token_ids[start:place], tokens.token_ids]
            spans.append(tokens.placed(place + num_added, number))
            num_more, start = len(tokens.token_ids) - 1, place + 1
            forks = [
                replace(fork, position=fork.position + num_more) if fork.position - num_added > place else fork
                for fork in forks
            ]
            num_added += num_more
        return EncodedPrompt(IdRow.joined((*rows, prompt.token_ids[start:])), tuple(forks), tuple(spans))


@dataclass(frozen=True, slots=True)
class PreparedArray:
    """An array in host memory, in C order and this machine's byte order. `dtype`: as numpy names it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """One image as its model's tower takes it. `arrays`: by the tower's names. `num_features`: the number of tokens
    that get one."""

    arrays: Mapping[str, PreparedArray]
    num_features: int

    @property
    def size_bytes(self) -> int:
        return sum(len(array.data) for array in self.arrays.values())


class ProcessedImage(NamedTuple):
    """The tokens of an image, and what their features are made of. Both follow from one layout."""

    tokens: ImageTokens
    prepared: PreparedImage


class ImageFeatures(Protocol):
    """The output of the tower for one image, in place of its tokens' embeddings. Opaque; compute thread only."""

    @property
    def size_bytes(self) -> int: ...


class ImageProcessor(Protocol):
    """The image processor of one model. Any thread; blocking, tens of milliseconds and more for a large image."""

    @property
    def placeholder(self) -> str:
        """The text of the one added token that the chat template writes for an image."""
        ...

    def process(self, image: Image) -> ProcessedImage:
        """Returns what the model needs of an image. Raises InvalidRequest that names `image.field`, and
        ServerUnavailable where the file is not the cause."""
        ...


class ImageProcessorLoader(Protocol):
    """Loads image processors. Any thread; blocking."""

    def load(self, source: ModelSource) -> ImageProcessor | None:
        """Returns None for a model that does not see, or whose libraries are missing. Raises ModelLoadFailed, and
        ServerUnavailable."""
        ...

    def close(self) -> None:
        """Ends the processes that decode images. Calls under way fail."""
        ...


FetchImage: TypeAlias = Callable[[str, str, int], bytes]
"""Fetches an image file by URL; the last argument is the most bytes. Any thread; blocking, with a deadline. Raises
InvalidRequest that names the field (the second argument).

It asks hosts that the operator allows, at public addresses only, whatever a name server says: no client reaches what
only this machine can reach."""
