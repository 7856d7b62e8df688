"""A toy engine in a memory that has an end: every operation is billed, and none may need more than the hard mark.

The meter is what the guard reads, so that it reads what is so; what it needs for a moment is checked before
the operation runs. `problems`: where the hard mark was crossed, and what was computed for a sequence that the guard had
not seen, which is what goes around it.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from adapters.fake.engine import FakeEngine
from adapters.fake.vision import ToyImages
from application.ports.compute import (
    NO_DRAFTS,
    NO_IMAGES,
    DecodeResult,
    DecodeStart,
    Draft,
    Images,
    LoadedModel,
    LoadReport,
    LoadSteps,
    PromptScores,
    unreported,
)
from application.ports.state_access import LeftState
from application.ports.vision import ImageFeatures
from application.services.prefix.hot_tier import HotTier
from domain.ids import SequenceId
from domain.memory.ledger import MemoryLimits, MemoryReading
from domain.memory.shape import MemoryShape
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.prefix.prompt_content import MediaSpan
from domain.prefix.record import GroupPayloads
from domain.request.media import Image


class Meter:
    """A MemoryProbe. `other_bytes`: the process itself. `queued_bytes`: what waits for the store."""

    def __init__(self, limits: MemoryLimits, hot: HotTier, other_bytes: int) -> None:
        self.limits, self._hot, self.other_bytes = limits, hot, other_bytes
        self.is_known: Callable[[SequenceId], bool] = lambda _: True
        self.queued_bytes: Callable[[], int] = lambda: 0
        self.models: list[MeteredModel] = []
        self.cached_bytes = self.peak_bytes = 0
        self.problems: list[str] = []
        self.num_calls: Counter[str] = Counter()

    def bill(self, operation: str, ids: Sequence[SequenceId] = (), growth: int = 0, transient: int = 0) -> None:
        """Before it runs: for whom, what it adds for good, and beyond that for a moment."""
        self.num_calls[operation] += 1
        self.problems += [f"{operation} of {id}, which the guard has not seen" for id in ids if not self.is_known(id)]
        held = self.held_bytes() + growth
        self.peak_bytes = max(self.peak_bytes, held + transient)
        if held + transient > self.limits.hard_bytes:
            self.problems.append(f"{operation} needs {held + transient} of {self.limits.hard_bytes}")

    def read(self) -> MemoryReading:
        return MemoryReading(held_bytes=self.held_bytes() + self.cached_bytes, cached_bytes=self.cached_bytes)

    def clear(self) -> None:
        self.cached_bytes = 0

    def held_bytes(self) -> int:
        models = sum(model.held_bytes() for model in self.models)
        return self.other_bytes + models + self._hot.held_bytes() + self.queued_bytes()


class MeteredModel:
    """A LoadedModel. `shape`: what it takes. A batch lets go of a row whose state was copied when it decodes again."""

    def __init__(self, inner: LoadedModel, shape: MemoryShape, meter: Meter) -> None:
        self.inner, self.shape, self._meter = inner, shape, meter
        self._chunks: dict[SequenceId, int] = {}
        self._decoding: set[SequenceId] = set()
        self._left: dict[SequenceId, int] = {}
        self._gone_bytes = self.image_bytes = 0

    def set_media(self, id: SequenceId, media: Sequence[MediaSpan]) -> None:
        self.inner.set_media(id, media)

    def prepared(self, image: Image) -> Any:
        """Returns the arrays of an image as they arrive in the engine: they take memory until they are let go."""
        tokens, inner = ToyImages().process(image)
        num_tokens = len(tokens.token_ids)
        size_bytes = num_tokens * self.shape.image.prepared_bytes
        self._meter.bill("prepare", growth=size_bytes)
        return MeteredImage(self, inner, num_tokens, size_bytes)

    def encode_image(self, image: Any) -> ImageFeatures:
        assert isinstance(image, MeteredImage)
        cost, length = self.shape.image, image.num_tokens
        self._meter.bill(
            "encode_image", growth=length * cost.feature_bytes, transient=cost.tower.bytes_at(length, length)
        )
        return MeteredImage(self, self.inner.encode_image(image.inner), length, length * cost.feature_bytes)

    @property
    def description(self) -> ModelDescription:
        return replace(self.inner.description, weight_bytes=self.shape.weight_bytes, memory=self.shape)

    def held_bytes(self) -> int:
        states = sum(map(self._state_bytes, self.inner.open_ids())) + sum(self._left.values())
        return self.shape.weight_bytes + states + self._gone_bytes + self.image_bytes

    def open(self, id: SequenceId) -> None:
        self._meter.bill("open", [id])
        self.inner.open(id)

    def restore(self, id: SequenceId, position: int, blocks: Sequence[GroupPayloads], snapshot: GroupPayloads) -> None:
        self._meter.bill("restore", [id], growth=self.shape.state_bytes(position))
        self.inner.restore(id, position, blocks, snapshot)

    def prefill(
        self, id: SequenceId, token_ids: Sequence[int], *, images: Images = NO_IMAGES, **rest: Any
    ) -> PromptScores:
        self._bill_chunk("prefill", id, len(token_ids))
        return self.inner.prefill(id, token_ids, images=toys(images), **rest)

    def start_decode(
        self,
        id: SequenceId,
        token_ids: Sequence[int],
        start: DecodeStart,
        *,
        images: Images = NO_IMAGES,
        **rest: Any,
    ) -> PromptScores:
        self._bill_chunk("start_decode", id, len(token_ids))
        found = self.inner.start_decode(id, token_ids, start, images=toys(images), **rest)
        self._decoding.add(id)
        self._chunks[id] = 0
        return found

    def decode(
        self, ids: Sequence[SequenceId], drafts: Mapping[SequenceId, Draft] = NO_DRAFTS
    ) -> Sequence[DecodeResult]:
        self._gone_bytes = 0
        longest = max(self.inner.position(id) for id in ids) + 1
        growth = sum(self.shape.state_bytes(self.inner.position(id) + 1) - self._state_bytes(id) for id in ids)
        self._meter.bill("decode", ids, growth, self.shape.decode_bytes(len(ids), longest))
        return self.inner.decode(ids, drafts)

    def capture_blocks(self, id: SequenceId, spans: Sequence[tuple[int, int]]) -> Sequence[GroupPayloads]:
        self._meter.bill("capture_blocks", [id])
        return self.inner.capture_blocks(id, spans)

    def capture_snapshot(self, id: SequenceId, block_start: int) -> GroupPayloads:
        self._meter.bill("capture_snapshot", [id])
        return self.inner.capture_snapshot(id, block_start)

    def position(self, id: SequenceId) -> int:
        return self.inner.position(id)

    def open_ids(self) -> frozenset[SequenceId]:
        return frozenset(self.inner.open_ids())

    def keep_live(self, id: SequenceId, *, may_copy: bool = True) -> LeftState | None:
        before, num_bytes = self.held_bytes(), self._state_bytes(id)
        left = self.inner.keep_live(id, may_copy=may_copy)
        is_row = id in self._decoding and len(self._decoding) > 1
        self._forget([id])
        if left is not None:
            self._left[id] = num_bytes
            self._gone_bytes += num_bytes if is_row else 0
            self._meter.bill("keep_live")
            return replace(left, size_bytes=num_bytes)
        self._meter.cached_bytes += (before - self.held_bytes()) // 2
        return None

    def left_ids(self) -> frozenset[SequenceId]:
        return self.inner.left_ids()

    def drop(self, ids: Sequence[SequenceId]) -> None:
        self.inner.drop(ids)
        self._meter.cached_bytes += sum(self._left.pop(id, 0) for id in ids) // 2

    def take_over(self, id: SequenceId, left: SequenceId, position: int) -> None:
        num_bytes = self._left.pop(left)
        growth = self.shape.state_bytes(position) - num_bytes
        self._meter.bill("take_over", [id], growth=max(0, growth))
        self.inner.take_over(id, left, position)

    def close(self, ids: Sequence[SequenceId]) -> None:
        before = self.held_bytes()
        self.inner.close(ids)
        self._forget(ids)
        self._meter.cached_bytes += (before - self.held_bytes()) // 2  # the backend keeps some of what was freed

    def _forget(self, ids: Sequence[SequenceId]) -> None:
        for id in ids:
            self._chunks.pop(id, None)
            self._decoding.discard(id)
        if not self._decoding:
            self._gone_bytes = 0

    def _bill_chunk(self, operation: str, id: SequenceId, length: int) -> None:
        end = self.inner.position(id) + length
        growth = self.shape.state_bytes(end, length) - self._state_bytes(id)
        self._meter.bill(operation, [id], max(0, growth), self.shape.peak_bytes(length, end))
        self._chunks[id] = length

    def _state_bytes(self, id: SequenceId) -> int:
        return self.shape.state_bytes(self.inner.position(id), self._chunks.get(id, 0))


class MeteredImage:
    """Pixels or features that take `size_bytes` until they are let go."""

    def __init__(self, model: MeteredModel, inner: Any, num_tokens: int, size_bytes: int) -> None:
        self.inner, self.num_tokens, self.size_bytes, self._model = inner, num_tokens, size_bytes, model
        model.image_bytes += size_bytes

    def __del__(self) -> None:
        self._model.image_bytes -= self.size_bytes


def toys(images: Images) -> Images:
    """Returns the features as the toy made them."""
    return {digest: one.inner for digest, one in images.items() if isinstance(one, MeteredImage)}


class MeteredEngine:
    """A ComputeEngine whose models take what `shapes` says; others what theirs do."""

    def __init__(self, inner: FakeEngine, meter: Meter, shape_of: Callable[[MemoryShape], MemoryShape]) -> None:
        self._inner, self._meter, self._shape_of = inner, meter, shape_of

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        inner = yield from self._inner.load(source, options, report)
        model = MeteredModel(inner, self._shape_of(inner.description.memory), self._meter)
        self._meter.bill("load", growth=model.shape.weight_bytes)
        self._meter.models.append(model)
        return model

    def unload(self, model: LoadedModel) -> None:
        assert isinstance(model, MeteredModel)
        self._meter.models.remove(model)
        self._inner.unload(model.inner)

    def memory(self) -> Mapping[str, int]:
        return {"active": self._meter.held_bytes()}

    def clear_cache(self) -> None:
        self._meter.clear()

    def finish(self) -> None:
        self._inner.finish()

    def close(self) -> None:
        self._inner.close()
