"""The toy model's images: files of a few bytes, rows of tokens that end with a marker, features of one word a token.

    toy:2x3:a cat        <pad> <pad> <pad> \\n        rows of features, and the marker of each row's end
                         <pad> <pad> <pad> \\n

A feature is a function of the file's content and the model's weights. It enters the toy's state like a token, so that
features of another image, or in another place, change every later token.
"""

import re
from dataclasses import dataclass
from hashlib import sha256

from adapters.fake.leaves import WORD_BYTES, Words, mix
from adapters.fake.options import PAD_ID
from application.ports.vision import ImageTokens, PreparedArray, PreparedImage, ProcessedImage
from domain.errors import InvalidRequest
from domain.id_row import IdRow
from domain.request.media import Image

MARK_ID = 10

_NAME = "words"

_FILE = re.compile(rb"toy:([1-9]\d?)x([1-9]\d?):.*", re.DOTALL)


def toy_image(rows: int, columns: int, content: str = "", field: str = "") -> Image:
    """Returns an image of a toy file."""
    return Image(f"toy:{rows}x{columns}:{content}".encode(), field=field)


@dataclass(frozen=True, slots=True)
class ToyWords:
    """ImageFeatures: a word for each token that is no marker."""

    words: Words

    @classmethod
    def of(cls, image: PreparedImage) -> "ToyWords":
        """Returns the words of an image. Raises KeyError for one that was prepared for another model."""
        return cls(Words("Q", image.arrays[_NAME].data))

    def prepared(self) -> PreparedImage:
        number = len(self.words)
        return PreparedImage({_NAME: PreparedArray("uint64", (number,), self.words.tobytes())}, number)

    @property
    def size_bytes(self) -> int:
        return len(self.words) * WORD_BYTES


class ToyImages:
    """An ImageProcessor. `has_grid`: its model has positions of rows and columns."""

    placeholder = "<|pad|>"

    def __init__(self, *, has_grid: bool = True) -> None:
        self._has_grid = has_grid

    def process(self, image: Image) -> ProcessedImage:
        rows, columns = _read(image)
        first = int.from_bytes(sha256(image.data).digest()[:WORD_BYTES], "little")
        words = ToyWords(Words("Q", [mix(first + at) for at in range(rows * columns)]))
        tokens = ImageTokens(
            IdRow((*[PAD_ID] * columns, MARK_ID) * rows),
            sha256(b"toy images\0" + bytes((self._has_grid,)) + image.digest).digest(),
            tuple((row * (columns + 1), row * (columns + 1) + columns) for row in range(rows)),
            (1, rows, columns + 1) if self._has_grid else None,
        )
        return ProcessedImage(tokens, words.prepared())


def _read(image: Image) -> tuple[int, int]:
    """Returns rows and columns."""
    if (found := _FILE.fullmatch(image.data)) is None:
        name = image.field or "image"
        raise InvalidRequest(f"{name}: it is no toy image of 1 to 99 rows and columns", param=image.field or None)
    return int(found[1]), int(found[2])
