"""Images on the token side: pixels that workers prepare, and the features that the model's tower makes of them.

    not needed      its tokens were restored
    needed ──► preparing ──► prepared ──look──► in use ──► kept, until memory is wanted
      └──────────── its features are kept ────────▲

An image is prepared when the prompt's computed part comes near it: the prompt is not computed into the image before,
and other sequences are. The tower runs in the prefill turn that reaches the image. Features are kept by model, tenant
and image, the least recently used dropped first and all of them before any other kept state. They are not stored: a
prefix that was stored needs none. Keyed by tenant, because the time to the first token shows what was kept.

Compute thread only, but for the workers.
"""

from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
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
class _Features:
    """`lease`: while `num_uses` sequences use them. `may_stay`: kept afterwards, unless the cache was cleared."""

    features: ImageFeatures
    size_bytes: int
    num_uses: int = 0
    lease: Lease | None = None
    may_stay: bool = True


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
        self._found: OrderedDict[Key, _Features] = OrderedDict()

    def __contains__(self, key: Key) -> bool:
        return key in self._found

    def use(self, key: Key) -> ImageFeatures | None:
        """Returns features that are kept from now on until they are given back; None for none."""
        if (found := self._found.get(key)) is None:
            return None
        self._found.move_to_end(key)
        if not found.num_uses:
            self.kept_bytes -= found.size_bytes
            found.lease = self.memory.hold(Purpose.IMAGES, found.size_bytes)
        found.num_uses += 1
        return found.features

    def add(self, key: Key, features: ImageFeatures, *, may_stay: bool) -> None:
        """Adds features that are used from now on."""
        size_bytes = features.size_bytes
        lease = self.memory.hold(Purpose.IMAGES, size_bytes)
        self._found[key] = _Features(features, size_bytes, 1, lease, may_stay)

    def give_back(self, key: Key) -> None:
        """Undoes one `use` or `add`."""
        found = self._found[key]
        found.num_uses -= 1
        if found.num_uses or found.lease is None:
            return
        found.lease.end()
        found.lease, self.kept_bytes = None, self.kept_bytes + found.size_bytes
        if not found.may_stay:
            self._drop([key])
        self.shrink(self.max_kept_bytes)

    def shrink(self, size_bytes: int) -> int:
        """Drops features that no sequence uses, down to `size_bytes`; returns the freed bytes."""
        before = self.kept_bytes
        for key, found in tuple(self._found.items()) if before > size_bytes else ():
            if self.kept_bytes > size_bytes and not found.num_uses:
                self._drop([key])
        return before - self.kept_bytes

    def drop_model(self, id: ModelId) -> None:
        """Drops the features of a model of which no sequence is open."""
        self._drop([key for key in self._found if key[0] == id])

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
        return problems + [
            f"the uses and the lease of {key} differ"
            for key, found in self._found.items()
            if (found.lease is None) != (found.num_uses == 0)
        ]

    def _drop(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.kept_bytes -= self._found.pop(key).size_bytes


@dataclass(slots=True)
class _Preparing:
    span: MediaSpan
    prepared: "Future[PreparedImage]"
    lease: Lease
    until_ns: int

    def end(self) -> None:
        self.prepared.cancel()
        self.lease.end()


class SequenceImages:
    """The images of one sequence's prompt."""

    def __init__(self, images: EngineImages, submission: Submission, id: RequestId) -> None:
        self._images, self._submission, self._id = images, submission, id
        self._media, self._num_cleared = submission.prompt.media, images.num_cleared
        self._preparing: dict[bytes, _Preparing] = {}
        self._used: dict[bytes, ImageFeatures] = {}

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
        unseen = [span for span in self._media if span.end > view.num_computed and self._key(span) not in self._images]
        is_whole = model is not None and model.description.image_is_whole
        num_leased = sum(one.span.length for one in self._preparing.values())
        num_pixels = max(0, most_pixels(unseen, self._images.ahead_tokens) - num_leased)
        return replace(
            view,
            unseen=(max((span.length for span in unseen), default=0), num_pixels),
            whole=tuple([(span.start, span.end) for span in self._media]) if is_whole else (),
            blocked_at=self._blocked_at(view.num_computed),
        )

    def move_to(self, position: int, model: LoadedModel) -> None:
        """Begins to prepare the images that `position` comes near to, and gives back those before it."""
        if not self._media:
            return
        end = position + self._images.ahead_tokens
        near = {span.digest: span for span in reversed(self._media) if span.end > position and span.start < end}
        self._give_back(spared=near)
        for span in reversed(near.values()):
            if span.digest in self._used or span.digest in self._preparing:
                continue
            if (features := self._images.use(self._key(span))) is not None:
                self._used[span.digest] = features
            else:
                self._preparing[span.digest] = self._begin(span, model)

    def _blocked_at(self, position: int) -> int | None:
        """Returns where computing has to wait for an image; None where all are ready. One that failed or is late is
        not waited for: `look` raises its error."""
        for span in self._media:
            if span.end > position and span.digest not in self._used:
                one = self._preparing.get(span.digest)
                if one is None or not (one.prepared.done() or self._is_late(one)):
                    return max(position, span.start)
        return None

    def look(self, model: LoadedModel, start: int, end: int) -> Images:
        """Returns the features of all images in the chunk [start, end), which the tower makes now where there are none.
        Raises as `Seeing.look`, and for an image that is not prepared, or not in time."""
        spans = [span for span in self._media if span.start < end and start < span.end]
        if not spans:
            return NO_IMAGES
        for span in spans:
            if span.digest not in self._used:
                key = self._key(span)
                features = self._images.use(key)  # another sequence may have been there first
                if features is None:
                    features = self._seen(span, model)
                    self._images.add(key, features, may_stay=self._num_cleared == self._images.num_cleared)
                self._used[span.digest] = features
                self._preparing.pop(span.digest).end()
        return {span.digest: self._used[span.digest] for span in spans}

    def release(self) -> None:
        """Gives everything back. Idempotent."""
        self._give_back(spared=())

    def _key(self, span: MediaSpan) -> Key:
        return self._submission.model, self._submission.cache_salt, span.digest

    def _give_back(self, spared: Container[bytes]) -> None:
        for digest in [digest for digest in self._preparing if digest not in spared]:
            self._preparing.pop(digest).end()
        for digest in [digest for digest in self._used if digest not in spared]:
            del self._used[digest]
            self._images.give_back((self._submission.model, self._submission.cache_salt, digest))

    def _begin(self, span: MediaSpan, model: LoadedModel) -> _Preparing:
        images, processor = self._images, model.image_processor
        if processor is None:
            raise ComputeFailed("this model does not see images")
        prepared = images.lane.submit(processor.prepare, self._submission.images[span.digest])
        lease = images.memory.hold(Purpose.IMAGES, span.length * model.description.memory.image.prepared_bytes)
        prepared.add_done_callback(lambda _: images.wake())
        return _Preparing(span, prepared, lease, images.batcher.now_ns() + int(PREPARE_TIMEOUT_S * 1e9))

    def _seen(self, span: MediaSpan, model: LoadedModel) -> ImageFeatures:
        batcher, started_ns = self._images.batcher, self._images.batcher.now_ns()
        features = model.look(self._prepared(self._preparing[span.digest]))
        batcher.emit(
            ImageSeen(
                id=self._id,
                num_tokens=span.length,
                size_bytes=features.size_bytes,
                started_ns=started_ns,
                at_ns=batcher.now_ns(),
            )
        )
        return features

    def _is_late(self, one: _Preparing) -> bool:
        return self._images.batcher.now_ns() >= one.until_ns

    def _prepared(self, one: _Preparing) -> PreparedImage:
        name, future, limit = f"image {one.span.number} of the prompt", one.prepared, f"{PREPARE_TIMEOUT_S:g} s"
        if not future.done():
            raise ServerUnavailable(f"{name} was not prepared within {limit}: try again later, or send a smaller image")
        if future.cancelled():
            raise ServerUnavailable("the server is stopping")
        error = future.exception()
        if error is None:
            return future.result()
        raise bare(error) if isinstance(error, DomainError) else ComputeFailed(f"{name} failed: {described(error)}")
