"""Images on the token side: arrays that the text side provides, and the features that the model's tower makes of them.

    needed ──► wanted ──► provided ──tower──► features in use ──► kept, until memory is wanted
      └─────────── its features are kept ──────────▲

An image is asked for when the prompt's computed part comes near it, unless its tokens were restored: the prompt is not
computed into the image before, and other sequences are. The tower runs in the prefill turn that reaches the image.
Images are found by model, tenant and digest, by all sequences. Features are kept, the least recently used dropped first
and all of them before any other kept state. They are not stored: a prefix that was stored needs none. Keyed by tenant,
because the time to the first token shows what was kept.

Of the sequences that wait for an image, the first has asked for it. When it leaves, the next one asks: what was sent on
behalf of a request that has ended may never come.

Compute thread only.
"""

from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

from application.events import ImageSeen, ImagesMatched
from application.ports.compute import NO_IMAGES, Images, LoadedModel, PromptScores
from application.ports.engine import EngineError, ImageWanted, Submission
from application.ports.vision import ImageFeatures, PreparedImage
from application.services.token_side.event_batcher import EventBatcher
from domain.ids import ModelId, RequestId, SequenceId
from domain.memory.shape import ImageSizes
from domain.prefix.prompt_content import MediaSpan
from domain.request.stream import TokenLogprob
from domain.scheduling.step_values import PrefillingView, PromptView

MAX_KEPT_BYTES = 256 << 20
"""Features that are kept beside those in use: some 60 images of 1,000 tokens for a model of 2,048 dimensions."""

Key: TypeAlias = tuple[ModelId, str, bytes, int]
"""Model, salt of the request, digest of a span, and how often the prefix cache was cleared before the request."""


V = TypeVar("V", bound=PromptView)


@dataclass(slots=True)
class _Image:
    """An image that sequences use. `prepared`: its arrays, or why there are none; None until they are provided, and
    once there are features. `users`: how each sequence asks for it; the first one has, unless it was ready."""

    features: ImageFeatures | None = None
    prepared: PreparedImage | EngineError | None = None
    users: dict[SequenceId, Callable[[], object]] = field(default_factory=dict[SequenceId, Callable[[], object]])

    @property
    def is_ready(self) -> bool:
        """True if computing need not wait for it. One that failed is not waited for."""
        return self.features is not None or self.prepared is not None


class EngineImages:
    """The images of an engine. `kept_bytes`: features that no sequence uses. `ahead_tokens`: how near the computed part
    of a prompt is to an image when that is asked for. `num_cleared`: how often the prefix cache was cleared."""

    def __init__(self, batcher: EventBatcher, ahead_tokens: int) -> None:
        self.batcher, self.ahead_tokens = batcher, ahead_tokens
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

    def use(self, key: Key, user: SequenceId, ask: Callable[[], object]) -> _Image:
        """Returns an image that stays until it is given back. `ask`: asks the text side for its arrays."""
        if (found := self._used.get(key)) is None:
            found = self._used[key] = _Image(self._drop(key))
        found.users[user] = ask
        if len(found.users) == 1 and not found.is_ready:
            ask()
        return found

    def provide(self, model: ModelId, salt: str, digest: bytes, image: PreparedImage | EngineError) -> None:
        """Takes the arrays of an image, or why there are none. An image that no sequence waits for is ignored."""
        for key, found in self._used.items():
            if key[:3] == (model, salt, digest) and not found.is_ready:
                found.prepared = image

    def give_back(self, key: Key, user: SequenceId) -> None:
        """Undoes a `use`."""
        found = self._used[key]
        has_asked = next(iter(found.users)) == user
        del found.users[user]
        if found.users:
            if has_asked and not found.is_ready:
                next(iter(found.users.values()))()
            return
        del self._used[key]
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
    """The images of one sequence's prompt. `id`: the choice's own. `send`: sends an item of the choice."""

    def __init__(
        self,
        images: EngineImages,
        submission: Submission,
        sequence: SequenceId,
        id: RequestId,
        send: Callable[[ImageWanted], object],
    ) -> None:
        self._images, self._submission, self._sequence, self._id, self._send = images, submission, sequence, id, send
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

    def added_to(self, view: V, model: LoadedModel | None) -> V:
        """Returns the planner's view of the sequence with its images."""
        position = view.num_computed if isinstance(view, PrefillingView) else 0
        ahead = [span for span in self._media if span.end > position]
        unseen = [span for span in ahead if not self._images.has_features(self._key(span.digest))]
        is_whole = model is not None and model.description.image_is_whole
        sizes = ImageSizes.of([span.length for span in unseen], self._images.ahead_tokens)
        view = replace(
            view, unseen=sizes, whole=tuple([(one.start, one.end) for one in self._media]) if is_whole else ()
        )
        if isinstance(view, PrefillingView):
            ready = {digest for digest, image in self._used.items() if image.is_ready}
            blocked_at = next((max(position, span.start) for span in ahead if span.digest not in ready), None)
            view = replace(view, blocked_at=blocked_at)
        return view

    def move_to(self, position: int) -> None:
        """Asks for the images that `position` comes near to, and gives back those before it."""
        end = position + self._images.ahead_tokens
        near = [span for span in self._media if span.end > position and span.start < end]
        self._give_back(spared={span.digest for span in near})
        for span in near:
            if span.digest not in self._used:
                ask = partial(self._send, ImageWanted(span.digest))
                self._used[span.digest] = self._images.use(self._key(span.digest), self._sequence, ask)

    def chunk_features(self, model: LoadedModel, start: int, end: int) -> Images:
        """Returns the features of all images in the chunk [start, end), which the tower makes now where there are none.
        Raises as `Seeing.encode_image`, and for an image that could not be provided."""
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
            self._images.give_back(self._key(digest), self._sequence)

    def _features(self, span: MediaSpan, model: LoadedModel) -> ImageFeatures:
        found, batcher = self._used[span.digest], self._images.batcher
        if isinstance(found.prepared, EngineError):
            raise found.prepared.to_error()
        if found.prepared is not None:
            started_ns = batcher.now_ns()
            features = model.encode_image(found.prepared)
            found.features, found.prepared = features, None
            times = {"started_ns": started_ns, "at_ns": batcher.now_ns()}
            batcher.emit(ImageSeen(id=self._id, num_tokens=span.length, size_bytes=features.size_bytes, **times))
        assert found.features is not None
        return found.features
