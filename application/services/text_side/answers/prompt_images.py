"""The images of a prompt: fetched where the client names a URL, checked and measured by the model's processor.

An image that cannot be shown (by its file, its URL or the model) is refused where the client can still take it back: in
what it sends after the last answer; a model that reads text only refuses images in conversations without an answer.
Elsewhere the model reads that an image was left out: agents keep what failed in their history and cannot change what a
tool returned, so that a refusal would end the session.

Files are decoded in a lane, one image a call, so that requests take turns, with a deadline. The tokens of an image are
kept for the next turn, by its salt: the time to the first token tells no tenant which images another one has sent.
"""

from collections import OrderedDict
from dataclasses import replace

from application.ports.vision import FetchImage, ImageProcessor, ImageRows, ImageTokens
from application.services.lane import Lane
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import InvalidRequest
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, Role
from domain.request.media import Image, left_out
from domain.request.request import ChatPrompt

NUM_THREADS, NUM_FETCHING = 2, 4
MAX_PENDING = 256
TIMEOUT_S = 30.0

MAX_KEPT = 1024
"""The images whose tokens are kept: four kilobytes each for most models, and 64 for the largest images of any."""

MAX_FETCHED_BYTES = 64 << 20
"""The most bytes that are fetched for one request."""

_Key = tuple[ModelSource, str, bytes]


class PromptImages:
    """Event loop only; threads start with the first image and end with `close`."""

    def __init__(self, fetch: FetchImage, timeout_s: float = TIMEOUT_S, max_kept: int = MAX_KEPT) -> None:
        self._fetch, self._max_kept = fetch, max_kept
        self._lane = Lane("image", NUM_THREADS, max_pending=MAX_PENDING, timeout_s=timeout_s)
        self._fetching = Lane("image-url", NUM_FETCHING, max_pending=MAX_PENDING, timeout_s=timeout_s)
        self._kept: OrderedDict[_Key, ImageTokens] = OrderedDict()

    async def shown(self, prompt: ChatPrompt, served: ServedModel, salt: str) -> tuple[ChatPrompt, ImageRows | None]:
        """Returns the prompt with the images that can be shown, and their tokens; None without images. Raises
        InvalidRequest, naming the image, and ServerUnavailable where images wait for too long."""
        if not prompt.images:
            return prompt, None
        processor, tokens = served.images, dict[bytes, ImageTokens]()
        num_answered = max((at for at, one in enumerate(prompt.messages, 1) if one.role is Role.ASSISTANT), default=0)
        messages, room = list[ChatMessage](), MAX_FETCHED_BYTES
        for at, message in enumerate(prompt.messages):
            shown = list[Image | str]()
            is_refused = message.role is not Role.TOOL and at >= num_answered
            for image in message.images:
                if processor is None:
                    if is_refused and not num_answered:
                        raise _unseen(served.source, image)
                    shown.append(left_out("image"))
                    continue
                try:
                    if image.url:
                        image = await self._fetched(image, room)
                        room -= len(image.data)
                    tokens[image.digest] = await self._tokens(image, processor, (served.source, salt, image.digest))
                except InvalidRequest as error:
                    if is_refused:
                        raise
                    shown.append(left_out("image", error.message.removeprefix(f"{image.field}: ")))
                else:
                    shown.append(image)
            messages.append(message.with_images(shown))
        rows = ImageRows(processor.placeholder, tokens) if processor is not None and tokens else None
        return replace(prompt, messages=tuple(messages)), rows

    def close(self) -> None:
        """Stops the lanes without waiting; an image that is being decoded is dropped."""
        self._lane.close()
        self._fetching.close()

    async def _fetched(self, image: Image, max_bytes: int) -> Image:
        data = await self._fetching.run(self._fetch, image.url, image.field, max_bytes)
        return Image(data, image.detail, image.field)

    async def _tokens(self, image: Image, processor: ImageProcessor, key: _Key) -> ImageTokens:
        if (found := self._kept.get(key)) is None:
            found = self._kept[key] = await self._lane.run(processor.measure, image)
        self._kept.move_to_end(key)
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)
        return found


def _unseen(source: ModelSource, image: Image) -> InvalidRequest:
    why = source.use.unseen or "it reads text only"
    return InvalidRequest(
        f"{image.field}: {source.id} cannot see images: {why}; name a model that has the capability see in /v1/models,"
        " or leave the image out",
        param=image.field,
    )
