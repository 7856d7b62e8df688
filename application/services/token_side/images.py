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
from application.services.memory_ledger import Lease, MemoryLedger, Purpose
from application.services.token_side.event_batcher import EventBatcher
from domain.errors import ComputeFailed, DomainError, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.prefix.prompt_content import MediaSpan, most_pixels
from domain.request.stream import TokenLogprob
from domain.scheduling.step_values import SequenceView

NUM_WORKERS = 2

PREPARE_TIMEOUT_S = 20.0
"""The longest wait for an image. A worker that hangs is lost, and nothing else."""

MAX_KEPT_BYTES = 256 << 20
"""Features that are kept beside those in use: some 60 images of 1,000 tokens for a model of 2,048 dimensions."""

Key: TypeAlias = tuple[ModelId, str, bytes]
"""Model, salt of the request, and digest of a span."""


@dataclass(slots=True)
class _Image:
    """An image that `num_uses` sequences use, or whose features are kept. `prepared`: the work of a worker, to be done
    by `until_ns`; None once there are features. `size_bytes`: of the features, or of the pixels before. `lease`: for
    them, while it is used. `may_stay`: its features are kept afterwards, unless the cache was cleared."""

    prepared: "Future[PreparedImage] | None"
    until_ns: int
    size_bytes: int
    lease: Lease
    may_stay: bool
    features: ImageFeatures | None = None
    num_uses: int = 0

    def is_late(self, now_ns: int) -> bool:
        return self.prepared is not None and not self.prepared.done() and now_ns >= self.until_ns

    def is_ready(self, now_ns: int) -> bool:
        """True if computing need not wait for it. One that failed or is late is not waited for."""
        return self.prepared is None or self.prepared.done() or now_ns >= self.until_ns


class EngineImages:
    """The images of an engine. `kept_bytes`: features that no sequence uses. `ahead_tokens`: how near the computed part
    of a prompt is to an image when that is prepared. `num_cleared`: how often the prefix cache was cleared. `wake`:
    called by workers when an image is prepared."""

    def __init__(
        self,
        memory: MemoryLedger,
        batcher: EventBatcher,
        ahead_tokens: int,
        max_kept_bytes: int = MAX_KEPT_BYTES,
    ) -> None:
        self.memory, self.batcher, self.ahead_tokens = memory, batcher, ahead_tokens
        self.lane = Lane("images", NUM_WORKERS)
        self.wake: Callable[[], object] = lambda: None
        self.kept_bytes = self.num_cleared = 0
        self.max_kept_bytes = max_kept_bytes
        self._found: OrderedDict[Key, _Image] = OrderedDict()

    def has_features(self, key: Key) -> bool:
        return key in self._found and self._found[key].features is not None

    def use(self, key: Key, prepare: Callable[[], "Future[PreparedImage]"], size_bytes: int, may_stay: bool) -> _Image:
        """Returns an image that stays until it is given back. `prepare`: begins to prepare it, to `size_bytes` of
        pixels, if there is none or its worker is late."""
        found, now_ns = self._found.get(key), self.batcher.now_ns()
        if found is None or found.is_late(now_ns):
            prepared, until_ns = prepare(), now_ns + int(PREPARE_TIMEOUT_S * 1e9)
            if found is None:
                found = _Image(prepared, until_ns, size_bytes, self.memory.hold(Purpose.IMAGES, size_bytes), may_stay)
                self._found[key] = found
            found.prepared, found.until_ns = prepared, until_ns
            prepared.add_done_callback(lambda _: self.wake())
        elif not found.num_uses:
            self.kept_bytes -= found.size_bytes
            found.lease = self.memory.hold(Purpose.IMAGES, found.size_bytes)
        self._found.move_to_end(key)
        found.num_uses += 1
        return found

    def put_features(self, found: _Image, features: ImageFeatures) -> None:
        """Puts features in place of the pixels of an image in use."""
        pixels, found.prepared = found.lease, None
        found.features, found.size_bytes = features, features.size_bytes
        found.lease = self.memory.hold(Purpose.IMAGES, found.size_bytes)
        pixels.end()

    def give_back(self, key: Key) -> None:
        """Undoes one `use`."""
        found = self._found[key]
        found.num_uses -= 1
        if found.num_uses:
            return
        found.lease.end()
        if found.prepared is not None:
            found.prepared.cancel()
        if found.features is None or not found.may_stay:
            del self._found[key]
        else:
            self.kept_bytes += found.size_bytes
            self.shrink(self.max_kept_bytes)

    def shrink(self, size_bytes: int) -> int:
        """Drops features that no sequence uses, down to `size_bytes`; returns the freed bytes."""
        before = self.kept_bytes
        for key in [key for key, found in self._found.items() if not found.num_uses]:
            if self.kept_bytes > size_bytes:
                self._drop(key)
        return before - self.kept_bytes

    def drop_model(self, id: ModelId) -> None:
        """Drops the features of a model of which no sequence is open."""
        for key in [key for key in self._found if key[0] == id]:
            self._drop(key)

    def note_clears(self, number: int) -> None:
        """Drops everything when the prefix cache was cleared since the last call. `number`: how often it was."""
        if number != self.num_cleared:
            self.num_cleared = number
            self.shrink(0)
            for found in self._found.values():
                found.may_stay = False

    def close(self) -> None:
        """Prepares nothing any more."""
        self.lane.close()

    def check_integrity(self) -> list[str]:
        """Recounts everything; returns one line for each problem, empty when sound."""
        counted = sum(found.size_bytes for found in self._found.values() if not found.num_uses)
        problems = [f"{self.kept_bytes} bytes accounted, {counted} counted"] if counted != self.kept_bytes else []
        if self.kept_bytes > self.max_kept_bytes:
            problems.append(f"{self.kept_bytes} bytes kept of {self.max_kept_bytes}")
        used = sum(found.size_bytes for found in self._found.values() if found.num_uses)
        held = self.memory.held_bytes(Purpose.IMAGES)
        return [*problems, f"{held} bytes held, {used} used"] if held != used else problems

    def _drop(self, key: Key) -> None:
        self.kept_bytes -= self._found.pop(key).size_bytes


class SequenceImages:
    """The images of one sequence's prompt."""

    def __init__(self, images: EngineImages, submission: Submission, id: RequestId) -> None:
        self._images, self._submission, self._id = images, submission, id
        self._media, self._num_cleared = submission.prompt.media, images.num_cleared
        self._used: dict[bytes, _Image] = {}

    def place(self, model: LoadedModel, id: SequenceId) -> None:
        """Places the images in the open, empty sequence."""
        if self._media:
            model.place(id, self._media)

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
        lengths = {span.digest: span.length for span in unseen}
        num_leased = sum(length for digest, length in lengths.items() if digest in self._used)
        num_pixels = max(0, most_pixels(unseen, self._images.ahead_tokens) - num_leased)
        now_ns = self._images.batcher.now_ns()
        ready = {digest for digest, image in self._used.items() if image.is_ready(now_ns)}
        is_whole = model is not None and model.description.image_is_whole
        return replace(
            view,
            unseen=(max((span.length for span in unseen), default=0), num_pixels),
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
        return self._submission.model, self._submission.cache_salt, digest

    def _give_back(self, spared: Container[bytes]) -> None:
        for digest in [digest for digest in self._used if digest not in spared]:
            del self._used[digest]
            self._images.give_back(self._key(digest))

    def _use(self, span: MediaSpan, model: LoadedModel) -> _Image:
        if (processor := model.image_processor) is None:
            raise ComputeFailed("this model does not see images")
        image, lane = self._submission.images[span.digest], self._images.lane
        size_bytes = span.length * model.description.memory.image.prepared_bytes
        may_stay = self._num_cleared == self._images.num_cleared
        key = self._key(span.digest)
        return self._images.use(key, lambda: lane.submit(processor.prepare, image), size_bytes, may_stay)

    def _features(self, span: MediaSpan, model: LoadedModel) -> ImageFeatures:
        found, batcher = self._used[span.digest], self._images.batcher
        if found.prepared is not None:
            started_ns = batcher.now_ns()
            features = model.look(_prepared(found.prepared, f"image {span.number} of the prompt"))
            self._images.put_features(found, features)
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
