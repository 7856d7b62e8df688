"""The text side's part of images for an engine under test: it answers what the engine wants, in a lane."""

from collections.abc import Callable, Mapping

from adapters.fake.vision import ToyImages
from application.ports.engine import EngineError, ImageWanted, StepBatch, Submission
from application.ports.vision import PreparedImage
from application.services.lane import Lane
from domain.errors import InvalidRequest
from domain.ids import ModelId, RequestId
from domain.request.media import Image

Provide = Callable[[ModelId, str, bytes, PreparedImage | EngineError], object]


def prepared(image: Image) -> PreparedImage | EngineError:
    """Returns the arrays of a toy image; an error for one whose content begins with `broken`."""
    if b":broken" in image.data:
        name = image.field or "the image"
        return EngineError.of(InvalidRequest(f"{name} is broken: send another file", param=image.field or None))
    return ToyImages().process(image).prepared


class ImageDesk:
    """`files`: the images of all prompts by the digests of their spans. `num_wanted`: how often one was wanted.
    `prepare` may be replaced."""

    def __init__(self, lane: Lane, provide: Provide, files: Mapping[bytes, Image]) -> None:
        self.lane, self.files = lane, files
        self.prepare: Callable[[Image], PreparedImage | EngineError] = prepared
        self.num_wanted = 0
        self._provide = provide
        self._asked: dict[RequestId, Submission] = {}

    def note(self, submission: Submission) -> None:
        self._asked[submission.id] = submission

    def receive(self, batch: StepBatch) -> None:
        for id, _, item in batch.items:
            if isinstance(item, ImageWanted):
                self.num_wanted += 1
                self.lane.submit(self._answer, self._asked[id], item.digest)

    def _answer(self, asked: Submission, digest: bytes) -> None:
        self._provide(asked.model, asked.cache_salt, digest, self.prepare(self.files[digest]))
