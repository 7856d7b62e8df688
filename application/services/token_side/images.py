"""Images on the token side: pixels that workers prepare, and the features that the model's tower makes of them.

    needed ──► preparing ──► prepared ──look──► features in use ──► kept, until memory is wanted
      └────────────── its features are kept ────────────▲

An image is prepared when the prompt's computed part comes near it, unless its tokens were restored: the prompt is not
computed into the image before, and other sequences are. The tower runs in the prefill turn that reaches the image.
Images are found by model, tenant and digest, by all sequences. Features are kept, the least recently used dropped first
and all of them before any other kept state. They are not stored: a prefix that was stored needs none. Keyed by tenant,
because the time to the first token shows what was kept.

Compute thread only, but for the workers.
"""

from collections import OrderedDict
from collections.abc import Callable, Container
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TypeAlias

from application.events import ImageSeen, ImagesMatched
from application.ports.compute import NO_IMAGES, Images, LoadedModel, PromptScores
from application.ports.engine import Submission
from application.ports.vision import ImageFeatures, PreparedImage
from application.services.faults import bare, described
from application.services.lane import Lane
from application.services.token_side.event_batcher import EventBatcher
from domain.errors import ComputeFailed, DomainError, ServerUnavailable
from domain.ids import ModelId, RequestId
from domain.memory.shape import ImageSizes
from domain.prefix.prompt_content import MediaSpan
from domain.request.stream import TokenLogprob
from domain.scheduling.step_values import SequenceView

NUM_WORKERS = 2

PREPARE_TIMEOUT_S = 20.0
"""The longest wait for an image. A worker that hangs is lost, and nothing else."""

MAX_KEPT_BYTES = 256 << 20
"""Features that are kept beside those in use: some 60 images of 1,000 tokens for a model of 2,048 dimensions."""

Key: TypeAlias = tuple[ModelId, str, bytes, int]
"""Model, salt of the request, digest of a span, and how often the prefix cache was cleared before the request."""


@dataclass(slots=True)
class _Image:
    """An image that `num_uses` sequences use. `prepared`: the work of a worker, to be done by `until_ns`; None once
    there are features."""

    features: ImageFeatures | None = None
    prepared: "Future[PreparedImage] | None" = None
    until_ns: int = 0
    num_uses: int = 0

    def is_ready(self, now_ns: int) -> bool:
        """True if computing need not wait for it. One that failed or is late is not waited for."""
        return self.prepared is None or self.prepared.done() or now_ns >= self.until_ns


class EngineImages:
    """The images of an engine. `kept_bytes`: features that no sequence uses. `ahead_tokens`: how near the computed part
    of a prompt is to an image when that is prepared. `num_cleared`: how often the prefix cache was cleared. `wake`:
    called by workers when an image is prepared."""

    def __init__(self, batcher: EventBatcher, ahead_tokens: int) -> None:
        self.batcher, self.ahead_tokens = batcher, ahead_tokens
        self.lane = Lane("images", NUM_WORKERS)
        self.wake: Callable[[], object] = lambda: None
        self.kept_bytes = self.num_cleared = 0
        self.max_kept_bytes = MAX_KEPT_BYTES
        self._used: dict[Key, _Image] = {}
        self._kept: OrderedDict[Key, ImageFeatures] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        """The bytes of features that sequences use. The pixels before are in the demand of each step."""
        return sum(found.features.size_bytes for found in self._used.values() if found.features is not None)

    def has_features(self, key: Key) -> bool:
        return key in self._kept or (key in self._used and self._used[key].features is not None)

    def use(self, key: Key, prepare: Callable[[], "Future[PreparedImage]"]) -> _Image:
        """Returns an image that stays until it is given back. `prepare`: begins to prepare it, if there are neither
        features nor a worker in time."""
        now_ns = self.batcher.now_ns()
        if (found := self._used.get(key)) is None:
            found = self._used[key] = _Image()
            found.features = self._drop(key)
        is_late = found.prepared is not None and not found.prepared.done() and found.is_ready(now_ns)
        if is_late or (found.prepared is None and found.features is None):
            found.prepared, found.until_ns = prepare(), now_ns + int(PREPARE_TIMEOUT_S * 1e9)
            found.prepared.add_done_callback(lambda _: self.wake())
        found.num_uses += 1
        return found

    def give_back(self, key: Key) -> None:
        """Undoes one `use`."""
        found = self._used[key]
        found.num_uses -= 1
        if found.num_uses:
            return
        del self._used[key]
        if found.prepared is not None:
            found.prepared.cancel()
        if found.features is not None and key[3] == self.num_cleared:
            self._kept[key] = found.features
            self.kept_bytes += found.features.size_bytes
            self.shrink(self.max_kept_bytes)

    def shrink(self, size_bytes: int) -> int:
        """Drops features that no sequence uses, down to `size_bytes`; returns the freed bytes."""
        before = self.kept_bytes
        while self.kept_bytes > size_bytes:
            self._drop(next(iter(self._kept)))
        return before - self.kept_bytes

    def drop_model(self, id: ModelId) -> None:
        """Drops the features of a model of which no sequence is open."""
        for key in [key for key in self._kept if key[0] == id]:
            self._drop(key)

    def note_clears(self, number: int) -> None:
        """Drops everything when the prefix cache was cleared since the last call. `number`: how often it was."""
        if number != self.num_cleared:
            self.num_cleared = number
            self.shrink(0)

    def close(self) -> None:
        """Prepares nothing any more."""
        self.lane.close()

    def check_integrity(self) -> list[str]:
        """Recounts everything; returns one line for each problem, empty when sound."""
        counted = sum(features.size_bytes for features in self._kept.values())
        problems = [f"{self.kept_bytes} bytes accounted, {counted} counted"] if counted != self.kept_bytes else []
        if self.kept_bytes > self.max_kept_bytes:
            problems.append(f"{self.kept_bytes} bytes kept of {self.max_kept_bytes}")
        return problems

    def _drop(self, key: Key) -> ImageFeatures | None:
        found = self._kept.pop(key, None)
        self.kept_bytes -= found.size_bytes if found is not None else 0
        return found


class SequenceImages:
    """The images of one sequence's prompt."""

    def __init__(self, images: EngineImages, submission: Submission, id: RequestId) -> None:
        self._images, self._submission, self._id = images, submission, id
        self._media, self._num_cleared = submission.prompt.media, images.num_cleared
        self._used: dict[bytes, _Image] = {}

    def report(self, position: int) -> None:
        """Emits how much of the images was restored, up to `position`."""
        if self._media:
            num_tokens = sum(span.length for span in self._media)
            num_reused = sum(max(0, min(span.end, position) - span.start) for span in self._media)
            now = self._images.batcher.now_ns()
            self._images.batcher.emit(ImagesMatched(self._id, len(self._media), num_tokens, num_reused, now))

    def text_scores(self, scores: PromptScores, start: int) -> tuple[TokenLogprob | None, ...]:
        """Returns the scores of a chunk without those of images, which no model predicts."""
        found = list(scores)
        for span in self._media:
            for at in range(max(span.start, start), min(span.end, start + len(found))):
                found[at - start] = None
        return tuple(found)

    def added_to(self, view: SequenceView, model: LoadedModel | None) -> SequenceView:
        """Returns the planner's view of the sequence with its images."""
        ahead = [span for span in self._media if span.end > view.num_computed]
        unseen = [span for span in ahead if not self._images.has_features(self._key(span.digest))]
        now_ns = self._images.batcher.now_ns()
        ready = {digest for digest, image in self._used.items() if image.is_ready(now_ns)}
        is_whole = model is not None and model.description.image_is_whole
        return replace(
            view,
            unseen=ImageSizes.of([span.length for span in unseen], self._images.ahead_tokens),
            whole=tuple([(span.start, span.end) for span in self._media]) if is_whole else (),
            blocked_at=next((max(view.num_computed, span.start) for span in ahead if span.digest not in ready), None),
        )

    def move_to(self, position: int, model: LoadedModel) -> None:
        """Begins to prepare the images that `position` comes near to, and gives back those before it."""
        end = position + self._images.ahead_tokens
        near = [span for span in self._media if span.end > position and span.start < end]
        self._give_back(spared={span.digest for span in near})
        for span in near:
            if span.digest not in self._used:
                self._used[span.digest] = self._use(span, model)

    def look(self, model: LoadedModel, start: int, end: int) -> Images:
        """Returns the features of all images in the chunk [start, end), which the tower makes now where there are none.
        Raises as `Seeing.look`, and for an image that is not prepared, or not in time."""
        spans = [span for span in self._media if span.start < end and start < span.end]
        return {span.digest: self._features(span, model) for span in spans} if spans else NO_IMAGES

    def release(self) -> None:
        """Gives everything back. Idempotent."""
        self._give_back(spared=())

    def _key(self, digest: bytes) -> Key:
        return self._submission.model, self._submission.cache_salt, digest, self._num_cleared

    def _give_back(self, spared: Container[bytes]) -> None:
        for digest in [digest for digest in self._used if digest not in spared]:
            del self._used[digest]
            self._images.give_back(self._key(digest))

    def _use(self, span: MediaSpan, model: LoadedModel) -> _Image:
        if (processor := model.image_processor) is None:
            raise ComputeFailed("this model does not see images")
        image, lane = self._submission.images[span.digest], self._images.lane
        return self._images.use(self._key(span.digest), lambda: lane.submit(processor.prepare, image))

    def _features(self, span: MediaSpan, model: LoadedModel) -> ImageFeatures:
        found, batcher = self._used[span.digest], self._images.batcher
        if found.prepared is not None:
            started_ns = batcher.now_ns()
            features = model.look(_prepared(found.prepared, f"image {span.number} of the prompt"))
            found.features, found.prepared = features, None
            times = {"started_ns": started_ns, "at_ns": batcher.now_ns()}
            batcher.emit(ImageSeen(id=self._id, num_tokens=span.length, size_bytes=features.size_bytes, **times))
        assert found.features is not None
        return found.features


def _prepared(prepared: "Future[PreparedImage]", name: str) -> PreparedImage:
    if not prepared.done():
        limit = f"{PREPARE_TIMEOUT_S:g} s"
        raise ServerUnavailable(f"{name} was not prepared within {limit}: try again later, or send a smaller image")
    if prepared.cancelled():
        raise ServerUnavailable("the server is stopping")
    error = prepared.exception()
    if error is None:
        return prepared.result()
    raise bare(error) if isinstance(error, DomainError) else ComputeFailed(f"{name} failed: {described(error)}")
