"""A loaded model's sight: its tower, its image processor, and its trunk's way to take images.

A forward pass of a trunk of mlx-lm over images has their embeddings in place of tokens, three positions a token where
the family has them, features added behind its first layers, and images whose tokens attend to each other.

The trunk is prepared once (`prepare_trunk`), with parts that hold nothing about a sequence. Each pass gets what its
tokens need by `chunk_pass`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.batch import Row
from adapters.mlx.caches.leaves import Caches
from adapters.mlx.caches.views import CacheView
from adapters.mlx.memory import begin_peak, peak_bytes
from adapters.mlx.runtime.arrays import from_numpy
from adapters.mlx.speculation.heads import text_model, trunk_of
from adapters.mlx.vision.families import Family
from adapters.mlx.vision.positions import GridRope, grid_positions, shift_at
from adapters.mlx.vision.tower import Features, Tower
from application.ports.compute import Images
from application.ports.vision import ImageProcessor, PreparedImage
from domain.errors import ComputeFailed
from domain.memory.shape import ImageCost, StepCost
from domain.prefix.prompt_content import MediaSpan


class Pass(NamedTuple):
    """The input of one forward pass. `embeddings`: [1, length, hidden] in place of the tokens'; None for those."""

    tokens: mx.array
    caches: Caches
    embeddings: mx.array | None = None


def prepare_trunk(network: Any, family: Family, config: Mapping[str, Any]) -> None:
    """Adds what a trunk lacks for images of its family; its parameters and its names stay."""
    layers: list[Any] = text_model(network).model.layers
    if family.has_grid:
        for attention in (layer.self_attn for layer in layers if "self_attn" in layer):
            rope = attention.rope
            sections = family.sections(config)
            attention.rope = GridRope(rope, rope.dims, sections, is_interleaved=family.is_interleaved)
    for layer in layers if family.is_deep else ():
        layer.__class__ = _adding(type(layer))  # pyright: ignore[reportUnknownArgumentType]


def _adding(layer: type[Any]) -> type[Any]:
    """A layer class that adds what its cache's view has for it."""

    class Adding(layer):  # type: ignore[misc]
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            found = cast(mx.array, layer.__call__(self, x, mask, cache))
            deep = cast(mx.array | None, getattr(cache, "deep", None))
            return found if deep is None else found + deep

    return Adding


def chunk_pass(
    network: Any,
    family: Family,
    tokens: mx.array,
    caches: Caches,
    media: Sequence[MediaSpan],
    start: int,
    images: Mapping[bytes, Features],
) -> Pass:
    """Returns the pass over tokens [1, length] from position `start` on. `media`: of the whole sequence; `images`: by
    digest. Raises ComputeFailed for an image that is needed and not there."""
    length = tokens.shape[1]
    places = list(_places(media, start, length, images))
    positions = grid_positions(media, start, length)
    offset = start - shift_at(media, start) if positions is None else from_numpy(positions)
    if not places and offset == start:
        return Pass(tokens, caches)
    runs = [(int(at[0]), int(at[-1]) + 1) for at, _, _ in places] if family.is_whole else []
    deep: dict[int, mx.array] = {}
    for at, rows, features in places:
        for layer, added in enumerate(features.deep):
            found = deep.setdefault(layer, mx.zeros((1, length, added.shape[-1]), added.dtype))
            found[0, from_numpy(at)] = added[from_numpy(rows)]
    views = [
        CacheView(cache, offset, runs=runs, deep=deep.get(index)) if hasattr(cache, "offset") else cache
        for index, cache in enumerate(caches)
    ]
    if not places:
        return Pass(tokens, views)
    model = text_model(trunk_of(network)).model
    is_text = np.ones((1, length), np.uint32)
    for at, _, _ in places:
        is_text[:, at] = 0
    tokens = tokens * from_numpy(is_text)
    embeddings = model.embed_tokens(tokens)
    scale = model.embed_scale if family.is_scaled else 1
    for at, rows, features in places:
        taken = features.embeddings[from_numpy(rows)] / scale
        embeddings[0, from_numpy(at)] = taken.astype(embeddings.dtype)
    return Pass(tokens, views, embeddings)


def _places(
    media: Sequence[MediaSpan], start: int, length: int, images: Mapping[bytes, Features]
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32], Features]]:
    """Yields the places in a chunk that get features of an image, and the rows of its features."""
    for span in (span for span in media if span.start < start + length and start < span.end):
        runs = [np.arange(*run, dtype=np.int32) for run in span.embedded or ((0, span.length),)]
        at = np.concatenate(runs) + (span.start - start)
        rows = np.flatnonzero((at >= 0) & (at < length)).astype(np.int32)
        if len(rows):
            if span.digest not in images:
                raise ComputeFailed(f"image {span.number} of the prompt was not computed")
            yield at[rows], rows, images[span.digest]


MARGIN = 1.1


class Sight:
    """The parts that a model sees with. `cost`: of an image's tokens, corrected by the largest measured peak so far in
    proportion to its estimate."""

    def __init__(self, tower: Tower, processor: ImageProcessor, family: Family, estimate: ImageCost) -> None:
        self.tower, self.processor, self.family, self.cost = tower, processor, family, estimate
        self._estimate, self._factor = estimate.tower, 0.0

    def look(self, image: PreparedImage) -> Features:
        """See `Seeing.look`. No other work may be under way, since its peak is measured."""
        arrays, num_features = cast("tuple[Mapping[str, NDArray[Any]], int]", image)
        begin_peak()
        features = self.tower.look(arrays, num_features)
        estimated = self._estimate.bytes_at(num_features, num_features)
        self._factor = max(self._factor, peak_bytes() / max(estimated, 1))
        now = (round(MARGIN * self._factor * cost) for cost in (self._estimate.token_bytes, self._estimate.pair_bytes))
        self.cost = replace(self.cost, tower=StepCost(token_bytes=next(now), pair_bytes=next(now)))
        return features

    def pass_over(self, network: Any, tokens: mx.array, row: Row, images: Images) -> Pass:
        """The pass over the next tokens [1, length] of a row."""
        found = cast("dict[bytes, Features]", images)
        return chunk_pass(network, self.family, tokens, row.caches, row.media, row.position, found)
