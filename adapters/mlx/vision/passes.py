"""The forward pass of a trunk of mlx-lm over images: their embeddings in place of tokens, three positions a token where
the family has them, features added behind its first layers, and images whose tokens attend to each other.

The trunk is prepared once (`prepare_trunk`), with parts that hold nothing about a sequence. Each pass gets what its
tokens need by `chunk_pass`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np

from adapters.mlx.caches.leaves import Caches
from adapters.mlx.caches.views import CacheView
from adapters.mlx.runtime.arrays import from_numpy
from adapters.mlx.speculation.heads import text_model, trunk_of
from adapters.mlx.vision.families import Family
from adapters.mlx.vision.positions import GridRope, grid_positions, shift_at
from adapters.mlx.vision.tower import Features
from domain.errors import ComputeFailed
from domain.prefix.prompt_content import MediaSpan


class Pass(NamedTuple):
    """The input of one forward pass. `embeddings`: [1, length, hidden] in place of the tokens'; None for those."""

    tokens: mx.array
    caches: Caches
    embeddings: mx.array | None = None


class _Piece(NamedTuple):
    """A run of an image's features in a chunk: rows [first, ...) of `features` from token `start` to `end`."""

    start: int
    end: int
    first: int
    features: Features


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
    pieces = list(_pieces(media, start, length, images))
    positions = grid_positions(media, start, length)
    offset = start - shift_at(media, start) if positions is None else from_numpy(positions)
    runs = [(piece.start, piece.end) for piece in pieces] if family.is_whole else []
    if not pieces and not runs and offset == start:
        return Pass(tokens, caches)
    deep = _deep(pieces, length)
    views = [
        CacheView(cache, offset, runs=runs, deep=deep.get(index)) if hasattr(cache, "offset") else cache
        for index, cache in enumerate(caches)
    ]
    if not pieces:
        return Pass(tokens, views)
    model = text_model(trunk_of(network)).model
    is_text = np.ones((1, length), np.uint32)
    for piece in pieces:
        is_text[:, piece.start : piece.end] = 0
    tokens = tokens * from_numpy(is_text)
    embeddings = model.embed_tokens(tokens)
    for piece in pieces:
        rows = piece.features.embeddings[piece.first : piece.first + piece.end - piece.start]
        scale = model.embed_scale if family.is_scaled else 1
        embeddings[0, piece.start : piece.end] = (rows / scale).astype(embeddings.dtype)
    return Pass(tokens, views, embeddings)


def _pieces(media: Sequence[MediaSpan], start: int, length: int, images: Mapping[bytes, Features]) -> Iterator[_Piece]:
    for span in media:
        if span.end <= start or span.start >= start + length:
            continue
        first = 0
        for begin, end in span.embedded or ((0, span.length),):
            at, to = span.start + begin - start, span.start + end - start
            if to > 0 and at < length:
                if span.digest not in images:
                    raise ComputeFailed(f"image {span.number} of the prompt was not computed")
                yield _Piece(max(at, 0), min(to, length), first + max(-at, 0), images[span.digest])
            first += end - begin


def _deep(pieces: Sequence[_Piece], length: int) -> dict[int, mx.array]:
    """Returns the features to add behind the first layers, each [1, length, hidden]."""
    found = dict[int, mx.array]()
    for piece in pieces:
        for layer, rows in enumerate(piece.features.deep):
            if layer not in found:
                found[layer] = mx.zeros((1, length, rows.shape[-1]), rows.dtype)
            found[layer][0, piece.start : piece.end] = rows[piece.first : piece.first + piece.end - piece.start]
    return found
