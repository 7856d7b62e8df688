"""Requests with images, in every dialect, and a server whose toy model sees real pictures."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions, reply_with
from adapters.fake.vision import toy_image
from adapters.pillow.decoder import decode
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.picture_images import PictureImages, Processors

CAT, DOG = toy_image(2, 3, "a cat").data, toy_image(4, 4, "a dog").data
CAT_TOKENS, DOG_TOKENS = 2 * (3 + 1), 4 * (4 + 1)


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


@contextmanager
def picture_service(**fields: Any) -> Iterator[FakeService]:
    """A server on the toy engine whose default model sees real pictures."""
    processor = PictureImages(decode)
    options = FakeOptions(reply=reply_with("I see."), images=processor, context_length=8_000)
    models = FakeModels(seeing=[DEFAULT_MODEL])
    with fake_service(options, models=models, images=Processors(processor), **fields) as service:
        yield service
