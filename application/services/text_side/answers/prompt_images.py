"""The images of a prompt: fetched where the client names a URL, checked and measured by the model's processor.

An image that cannot be shown (a model that reads text only, a damaged file, a URL that may not be fetched) is refused
where the client can still take it back: in what it sends after the last answer. A model that reads text only refuses
images in conversations without an answer. Elsewhere the model reads that an image was left out: agents keep what failed
in their history and cannot change what a tool returned, so that a refusal would end the session.

Files are decoded in a lane, one image a call, so that requests take turns, with a deadline. The tokens of an image are
kept for the next turn, by its salt: the time to the first token tells no tenant which images another one has sent.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from application.ports.image_fetch import FetchImage
from application.ports.vision import ImageProcessor, ImageRows, ImageTokens
from application.services.lane import Lane
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import InvalidRequest
from domain.models.capability import Capability
from domain.models.model_card import ModelSource
from domain.request.chat import ChatMessage, Role
from domain.request.media import Image, left_out
from domain.request.request import ChatPrompt

NUM_THREADS, NUM_FETCHING = 2, 4
MAX_PENDING = 256
TIMEOUT_S = 30.0

MAX_KEPT_TOKENS = 2**22
"""The bound of the kept measurements, in tokens of four bytes: some 4,000 large images."""

_KEPT_OVERHEAD = 128
"""Counted for each kept image beside its tokens."""

MAX_FETCHED_BYTES = 64 << 20
"""The most bytes that are fetched for one request."""

_INSTALL = "the extra `vision` is not installed (docs/vision.md says how)"


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """A prompt whose images can all be shown. `rows`: their tokens; None without images. `files`: the images, by the
    digest of their tokens."""

    prompt: ChatPrompt
    rows: ImageRows | None = None
    files: Mapping[bytes, Image] = field(default_factory=dict[bytes, Image])


class PromptImages:
    """Event loop only; threads start with the first image and end with `close`. `fetch`: None fetches nothing."""

    def __init__(self, fetch: FetchImage | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._fetch = fetch
        self._lane = Lane("image", NUM_THREADS, max_pending=MAX_PENDING, timeout_s=timeout_s)
        self._fetch_lane = Lane("image-url", NUM_FETCHING, max_pending=MAX_PENDING, timeout_s=timeout_s)
        self._kept: OrderedDict[tuple[ModelSource, str, bytes], ImageTokens] = OrderedDict()
        self._num_kept_tokens = 0

    async def shown(self, prompt: ChatPrompt, served: ServedModel, salt: str) -> ShownPrompt:
        """Returns the prompt with the images that can be shown. Raises InvalidRequest, naming the image, and
        ServerUnavailable where images wait for too long."""
        if not any(message.images for message in prompt.messages):
            return ShownPrompt(prompt)
        if (processor := served.images) is None:
            return ShownPrompt(_unseen(prompt, served.source))
        num_answered, tokens, files = _num_answered(prompt.messages), dict[bytes, ImageTokens](), dict[bytes, Image]()
        fetched = _Fetched()

        async def shown_image(image: Image) -> Image:
            image = await self._with_data(image, fetched)
            found = await self._tokens(image, processor, (served.source, salt, image.digest))
            tokens[image.digest], files[found.digest] = found, image
            return image

        messages = list[ChatMessage]()
        for at, message in enumerate(prompt.messages):
            shown = list[Image | str]()
            for image in message.images:
                try:
                    shown.append(await shown_image(image.image))
                except InvalidRequest as error:
                    if at >= num_answered and message.role is not Role.TOOL:
                        raise
                    shown.append(left_out("image", error.message.removeprefix(f"{image.image.field}: ")))
            messages.append(message.with_images(shown))
        rows = ImageRows(processor.placeholder, tokens) if tokens else None
        return ShownPrompt(replace(prompt, messages=tuple(messages)), rows, files)

    def close(self) -> None:
        """Stops the lanes without waiting; an image that is being decoded is dropped."""
        self._lane.close()
        self._fetch_lane.close()

    async def _with_data(self, image: Image, fetched: "_Fetched") -> Image:
        if not image.url:
            return image
        if self._fetch is None:
            raise InvalidRequest(
                f"{image.field}: images are not fetched here; send a data URL like data:image/png;base64,..., or list"
                " the host in server.image_hosts",
                param=image.field,
            )
        data = await self._fetch_lane.run(self._fetch, image.url, image.field, MAX_FETCHED_BYTES - fetched.num_bytes)
        fetched.num_bytes += len(data)
        return Image(data, image.detail, image.field)

    async def _tokens(
        self, image: Image, processor: ImageProcessor, key: tuple[ModelSource, str, bytes]
    ) -> ImageTokens:
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return found
        found = await self._lane.run(processor.measure, image)
        self._keep(key, found)
        return found

    def _keep(self, key: tuple[ModelSource, str, bytes], tokens: ImageTokens) -> None:
        if key in self._kept:  # another request has measured it meanwhile
            return
        self._kept[key] = tokens
        self._num_kept_tokens += _size(tokens)
        while self._num_kept_tokens > MAX_KEPT_TOKENS:
            self._num_kept_tokens -= _size(self._kept.popitem(last=False)[1])


@dataclass(slots=True)
class _Fetched:
    """The bytes that were fetched for one request."""

    num_bytes: int = 0


def _size(tokens: ImageTokens) -> int:
    return len(tokens.token_ids) + _KEPT_OVERHEAD


def _num_answered(messages: Sequence[ChatMessage]) -> int:
    """Returns the number of messages up to the last answer."""
    return max((at + 1 for at, message in enumerate(messages) if message.role is Role.ASSISTANT), default=0)


def _unseen(prompt: ChatPrompt, source: ModelSource) -> ChatPrompt:
    """Returns the prompt for a model that reads text only. Raises InvalidRequest, naming the first image."""
    is_answered = _num_answered(prompt.messages) > 0
    for message in prompt.messages:
        if message.images and not is_answered and message.role is not Role.TOOL:
            field = message.images[0].image.field
            why = _INSTALL if Capability.SEE in source.capabilities else "it reads text only"
            raise InvalidRequest(
                f"{field}: {source.id} cannot see images: {why}; name a model that has the capability see in"
                " /v1/models, or leave the image out",
                param=field,
            )
    note = left_out("image")
    return replace(prompt, messages=tuple(one.with_images([note] * len(one.images)) for one in prompt.messages))
