"""A toy model's processor of real pictures. Processes that decode import this module, and little else with it."""

from dataclasses import dataclass
from hashlib import sha256

from adapters.fake.leaves import Words, mix
from adapters.fake.options import PAD_ID
from adapters.fake.vision import ToyWords
from application.ports.vision import DecodeImage, ImageProcessor, ImageTokens, ProcessedImage
from domain.id_row import IdRow
from domain.models.capability import Capability
from domain.models.model_card import ModelSource
from domain.request.media import Image

TILE = 64
"""Pixels of a picture's side for a token."""


class PictureImages:
    """An ImageProcessor of the toy model for real image files: a token for each tile of the picture."""

    placeholder = "<|pad|>"

    def __init__(self, decode: DecodeImage) -> None:
        self._decode = decode

    def process(self, image: Image) -> ProcessedImage:
        pixels = self._decode(image.data, image.field)
        num_tokens = -(-pixels.width // TILE) * -(-pixels.height // TILE)
        digest = sha256(b"pictures" + image.digest).digest()
        first = int.from_bytes(sha256(pixels.rgb).digest()[:8], "little")
        words = ToyWords(Words("Q", [mix(first + at) for at in range(num_tokens)]))
        return ProcessedImage(ImageTokens(IdRow([PAD_ID] * num_tokens), digest), words.prepared())


@dataclass(frozen=True)
class Processors:
    """An ImageProcessorLoader with one processor for all models that see."""

    processor: ImageProcessor

    def load(self, source: ModelSource) -> ImageProcessor | None:
        return self.processor if Capability.SEE in source.use.capabilities else None

    def close(self) -> None:
        pass
