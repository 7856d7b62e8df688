"""Requests with images, in every dialect, and a toy model that sees real pictures."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from adapters.fake.engine import FakeModels
from adapters.fake.leaves import Words, mix
from adapters.fake.options import PAD_ID, FakeOptions, reply_with
from adapters.fake.vision import ToyWords, toy_image
from adapters.pillow.decoder import decode
from application.ports.vision import DecodeImage, ImageProcessor, ImageTokens, ProcessedImage
from domain.id_row import IdRow
from domain.models.capability import Capability
from domain.models.model_card import ModelSource
from domain.request.media import Image
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service

CAT, DOG = toy_image(2, 3, "a cat").data, toy_image(4, 4, "a dog").data
CAT_TOKENS, DOG_TOKENS = 2 * (3 + 1), 4 * (4 + 1)

TILE = 64
"""Pixels of a picture's side for a token."""


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64_of(data)}"


def openai_part(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data), **fields}}


def anthropic_block(data: bytes) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": base64_of(data)}}


def responses_part(data: bytes) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(data)}


@dataclass(frozen=True)
class Showing:
    """A question about a picture in one dialect. `body`: of the picture and the question, as one message of a user.
    `prompt_tokens` reads the whole number of an answer's prompt tokens, `field` names the picture."""

    path: str
    body: Callable[[bytes, str], dict[str, Any]]
    prompt_tokens: Callable[[dict[str, Any]], int]
    field: str


SHOWING = {
    "chat": Showing(
        "/v1/chat/completions",
        lambda data, text: {
            "messages": [{"role": "user", "content": [openai_part(data), {"type": "text", "text": text}]}]
        },
        lambda answer: int(answer["usage"]["prompt_tokens"]),
        "messages[0].content[0].image_url.url",
    ),
    "responses": Showing(
        "/v1/responses",
        lambda data, text: {
            "input": [{"role": "user", "content": [responses_part(data), {"type": "input_text", "text": text}]}]
        },
        lambda answer: int(answer["usage"]["input_tokens"]),
        "input[0].content[0].image_url",
    ),
    "messages": Showing(
        "/v1/messages",
        lambda data, text: {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [anthropic_block(data), {"type": "text", "text": text}]}],
        },
        lambda answer: answer["usage"]["input_tokens"] + answer["usage"]["cache_read_input_tokens"],
        "messages[0].content[0].source.data",
    ),
    "ollama": Showing(
        "/api/chat",
        lambda data, text: {
            "stream": False,
            "messages": [{"role": "user", "content": text, "images": [base64_of(data)]}],
        },
        lambda answer: int(answer["prompt_eval_count"]),
        "messages[0].images[0]",
    ),
    "generate": Showing(
        "/api/generate",
        lambda data, text: {"stream": False, "prompt": text, "images": [base64_of(data)]},
        lambda answer: int(answer["prompt_eval_count"]),
        "images[0]",
    ),
}
"""By dialect."""


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


@contextmanager
def picture_service(**fields: Any) -> Iterator[FakeService]:
    """A server on the toy engine whose default model sees real pictures."""
    processor = PictureImages(decode)
    options = FakeOptions(reply=reply_with("I see."), images=processor, context_length=8_000)
    models = FakeModels(seeing=[DEFAULT_MODEL])
    with fake_service(options, models=models, images=Processors(processor), **fields) as service:
        yield service
