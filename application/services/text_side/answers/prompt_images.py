"""The images of a prompt: fetched where the client names a URL, and processed for the model.

An image that cannot be shown (by its file, its URL or the model) is refused where the client can still take it back: in
what it sends after the last answer; a model that reads text only refuses images in conversations without an answer.
Elsewhere the model reads that an image was left out: agents keep what failed in their history and cannot change what a
tool returned, so that a refusal would end the session.

Files are processed in a lane, one image a call, so that clients take turns, and no client has all of its threads. The
tokens of an image, or why it is refused, are kept for the next turn; its arrays until the engine wants them, within a
bound: what is not there any more is processed again. Both are kept by salt: the time to the first token shows no tenant
which images another one has sent.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from application.ports.vision import (
    FetchImage,
    ImageProcessor,
    ImageRows,
    ImageTokens,
    PreparedImage,
    ProcessedImage,
)
from application.services.lane import OWNER, Lane
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ImagesUnseen, InvalidRequest
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, Role
from domain.request.media import Image, left_out
from domain.request.request import ChatPrompt

NUM_THREADS, NUM_FETCHING = 3, 4
MAX_OF_ONE = 2
"""The images of one client that are processed at once."""

MAX_PENDING = 256
FETCH_TIMEOUT_S = 30.0

MAX_PREPARED_BYTES = 128 << 20
"""The most bytes of arrays that are kept: those of some five photographs."""

MAX_KEPT = 1024
"""The images whose tokens are kept: four kilobytes each for most models, and 64 for the largest images of any."""

MAX_FETCHED_BYTES = 64 << 20
"""The most bytes that are fetched for one request."""

_Key = tuple[ModelSource, str, bytes]


class PromptImages:
    """Event loop only; threads start with the first image and end with `close`."""

    def __init__(
        self, fetch: FetchImage, max_kept: int = MAX_KEPT, max_prepared_bytes: int = MAX_PREPARED_BYTES
    ) -> None:
        self._fetch, self._max_kept, self._max_prepared_bytes = fetch, max_kept, max_prepared_bytes
        self._lane = Lane("image", NUM_THREADS, max_pending=MAX_PENDING)  # the processor bounds each call
        self._fetching = Lane("image-url", NUM_FETCHING, max_pending=MAX_PENDING, timeout_s=FETCH_TIMEOUT_S)
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._kept: OrderedDict[_Key, ImageTokens | str] = OrderedDict()  # a text: why it is refused
        self._prepared: OrderedDict[_Key, PreparedImage] = OrderedDict()
        self.prepared_bytes = 0

    async def shown(self, prompt: ChatPrompt, served: ServedModel, salt: str) -> tuple[ChatPrompt, ImageRows | None]:
        """Returns the prompt with the images that can be shown, and their tokens; None without images. Raises
        InvalidRequest, naming the image, and ServerUnavailable where images wait for too long."""
        if not prompt.images:
            return prompt, None
        processor, tokens = served.images, dict[bytes, ImageTokens]()
        num_answered, messages, room = prompt.num_answered, list[ChatMessage](), MAX_FETCHED_BYTES
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
            messages.append(message.with_media(shown))
        rows = ImageRows(processor.placeholder, tokens) if processor is not None and tokens else None
        return replace(prompt, messages=tuple(messages)), rows

    def wanted(
        self, prompt: ChatPrompt, rows: ImageRows | None, served: ServedModel, salt: str
    ) -> "WantedImages | None":
        """Returns the images that are shown, for when the engine wants their arrays; None without images."""
        if rows is None:
            return None
        by_digest = {rows.tokens[image.digest].digest: image for image in prompt.images}
        return WantedImages(self, by_digest, served, salt, OWNER.get())

    async def prepare(self, image: Image, served: ServedModel, salt: str) -> PreparedImage:
        """Returns the arrays of an image, and keeps them no longer. Raises as `ImageProcessor.process` does."""
        if (found := self._prepared.pop((served.source, salt, image.digest), None)) is None:
            assert served.images is not None
            return (await self._processed(image, served.images)).prepared
        self.prepared_bytes -= found.size_bytes
        return found

    def close(self) -> None:
        """Stops the lanes without waiting; an image that is being decoded is dropped."""
        self._lane.close()
        self._fetching.close()

    async def _fetched(self, image: Image, max_bytes: int) -> Image:
        data = await self._fetching.run(self._fetch, image.url, image.field, max_bytes)
        return Image(data, image.detail, image.field)

    async def _tokens(self, image: Image, processor: ImageProcessor, key: _Key) -> ImageTokens:
        found = self._kept.get(key)
        if found is None:
            try:
                processed = await self._processed(image, processor)
            except InvalidRequest as error:
                self._keep(key, error.message.removeprefix(f"{image.field}: "))
                raise
            self._hold(key, processed.prepared)
            found = processed.tokens
        self._keep(key, found)
        if isinstance(found, str):
            raise InvalidRequest(f"{image.field}: {found}", param=image.field)
        return found

    async def _processed(self, image: Image, processor: ImageProcessor) -> ProcessedImage:
        async with self._turns.setdefault(OWNER.get(), asyncio.Semaphore(MAX_OF_ONE)):
            return await self._lane.run(processor.process, image)

    def _keep(self, key: _Key, found: ImageTokens | str) -> None:
        self._kept[key] = found
        self._kept.move_to_end(key)
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)

    def _hold(self, key: _Key, prepared: PreparedImage) -> None:
        """Keeps arrays until they are wanted, and drops the oldest above the bound."""
        if key in self._prepared:
            return
        self._prepared[key] = prepared
        self.prepared_bytes += prepared.size_bytes
        while self.prepared_bytes > self._max_prepared_bytes:
            _, dropped = self._prepared.popitem(last=False)
            self.prepared_bytes -= dropped.size_bytes


@dataclass(frozen=True, slots=True)
class WantedImages:
    """The images of one prompt of `owner`. `by_digest`: by the digests of their spans, which the engine names."""

    images: PromptImages
    by_digest: Mapping[bytes, Image]
    served: ServedModel
    salt: str
    owner: str

    async def prepare(self, digest: bytes) -> PreparedImage:
        """Returns the arrays of an image, prepared in the owner's turn; in a task of its own."""
        OWNER.set(self.owner)
        return await self.images.prepare(self.by_digest[digest], self.served, self.salt)


def _unseen(source: ModelSource, image: Image) -> ImagesUnseen:
    why = source.use.unseen or "it reads text only"
    return ImagesUnseen(
        f"{image.field}: {source.id} cannot see images: {why}; name a model that has the capability see in /v1/models,"
        " or leave the image out",
        param=image.field,
    )
