"""The passes of mlx-lm's trunks over images, by scheme.

Images have features in place of their tokens' embeddings, three positions a token in some families, features added
behind the first layers, and tokens that attend to each other. A scheme is computed once its logits equal those of
mlx-vlm: see tests/integration/mlx/vision/test_mlx_vision.py.

The trunk is prepared once (`prepare_trunk`), with parts that hold nothing about a sequence. Each pass gets what its
tokens need by `chunk_pass`. Positions derive from the places of the images: neither model nor cache keeps any.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.batch import Row
from adapters.mlx.caches.leaves import Caches
from adapters.mlx.caches.views import CacheView
from adapters.mlx.runtime.arrays import from_numpy
from adapters.mlx.speculation.drafting import nn
from adapters.mlx.speculation.heads import text_model, trunk_of
from application.ports.compute import Images
from domain.errors import ComputeFailed
from domain.prefix.prompt_content import MediaSpan


@dataclass(frozen=True, slots=True)
class VisionScheme:
    """The way of a model's trunk with images. `sections`: the frequencies of each of three positions a token, which
    take turns if `is_interleaved`; empty for one position. `is_deep`: features are added behind the first layers too.
    `is_whole`: the tokens of an image attend to all of it."""

    sections: Sequence[int]
    is_interleaved: bool
    is_deep: bool
    is_whole: bool

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "VisionScheme":
        """The scheme of a config.json."""
        name = str(config["model_type"])
        text = {**config, **cast("Mapping[str, Any]", config.get("text_config") or {})}
        ropes = [cast("Mapping[str, Any]", text.get(key) or {}) for key in ("rope_scaling", "rope_parameters")]
        sections = next((rope["mrope_section"] for rope in ropes if "mrope_section" in rope), ())
        if name.startswith("qwen") and not sections:
            raise ValueError("config.json has no mrope_section")
        return cls(
            sections=sections if name.startswith("qwen") else (),
            is_interleaved=not name.startswith("qwen2"),
            is_deep=name.startswith("qwen3_vl"),
            is_whole=name == "gemma3" or text.get("use_bidirectional_attention") == "vision",
        )


@dataclass(frozen=True, slots=True)
class Features:
    """An image as the trunk takes it. `embeddings`: [tokens, hidden]. `deep`: of the same shape, added behind the
    trunk's first layers, one each. Evaluated."""

    embeddings: mx.array
    deep: tuple[mx.array, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in (self.embeddings, *self.deep))


class Pass(NamedTuple):
    """The input of one forward pass. `embeddings`: [1, length, hidden] in place of the tokens'; None for those."""

    tokens: mx.array
    caches: Caches
    embeddings: mx.array | None = None


def positions_of(media: Sequence[MediaSpan], start: int, count: int) -> NDArray[np.int32]:
    """The positions [3, count] of the tokens from `start` on, on the axes of frames, rows and columns.

    Those of an image with a grid begin at one position, and the text behind it continues after its longest side:

        tokens     T  T  I  I  I  I  I  I  T  T        an image of 2 rows and 3 columns
        frames     0  1  2  2  2  2  2  2  5  6
        rows       0  1  2  2  2  3  3  3  5  6
        columns    0  1  2  3  4  2  3  4  5  6
    """
    index = np.arange(start, start + count, dtype=np.int32)
    found = np.tile(index, (3, 1))
    for span in media:
        if span.grid is not None:
            _, rows, columns = span.grid
            at = index - span.start
            inside = np.stack([at // (rows * columns), at // columns % rows, at % columns])
            found += np.where((at >= 0) & (index < span.end), inside - at, 0)
            found -= np.where(index >= span.end, span.shift, 0)
    return found


class GridRope(nn.Module):  # type: ignore[misc]
    """A layer's rotary embedding that also takes three positions a token, each for a part of the frequencies."""

    def __init__(self, rope: Any, dims: int, sections: Sequence[int], *, is_interleaved: bool) -> None:
        """`dims`: that are rotated, in halves. `sections`: frequencies of each axis. `is_interleaved`: the axes take
        turns, as far as the sections of rows and columns reach; otherwise they follow each other."""
        nn.Module.__init__(self)
        self.rope = rope
        axis = np.zeros(dims // 2, np.int8)
        for number in (1, 2):
            if is_interleaved:
                axis[number : 3 * sections[number] : 3] = number
            else:
                axis[sum(sections[:number]) : sum(sections[: number + 1])] = number
        self._axis = np.tile(axis, 2)

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        """Rotates x [rows, heads, length, dim]. `offset`: of the first token; or positions int32 [3, length] of one
        row's tokens, each of which is then a row of its own for the layer's kernel."""
        if not isinstance(offset, mx.array) or offset.ndim < 2:
            return cast(mx.array, self.rope(x, offset=offset))
        tokens = mx.swapaxes(x, 0, 2)
        rotated = [mx.swapaxes(self.rope(tokens, offset=offset[axis]), 0, 2) for axis in range(3)]
        axis = from_numpy(np.pad(self._axis, (0, x.shape[-1] - len(self._axis))))
        found = mx.where(axis == 1, rotated[1], rotated[0])
        return mx.where(axis == 2, rotated[2], found)


def prepare_trunk(network: Any, scheme: VisionScheme) -> None:
    """Adds what a trunk lacks for images of its scheme; its parameters and its names stay."""
    layers: list[Any] = text_model(network).model.layers
    for attention in [layer.self_attn for layer in layers if scheme.sections and "self_attn" in layer]:
        rope = attention.rope
        attention.rope = GridRope(rope, rope.dims, scheme.sections, is_interleaved=scheme.is_interleaved)
    for layer in layers if scheme.is_deep else ():
        layer.__class__ = _adding(type(layer))  # pyright: ignore[reportUnknownArgumentType]


def _adding(layer: type[Any]) -> type[Any]:
    """A layer class that adds what its cache's view has for it."""

    class Adding(layer):  # type: ignore[misc]
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            found = cast(mx.array, layer.__call__(self, x, mask, cache))
            deep = cast(mx.array | None, getattr(cache, "deep", None))
            return found if deep is None else found + deep

    return Adding


def chunk_pass(network: Any, scheme: VisionScheme, tokens: mx.array, row: Row, images: Images) -> Pass:
    """Returns the pass over the next tokens [1, length] of a row. Raises ComputeFailed for an image that is needed and
    not there."""
    caches, media, start, length = row.caches, row.media, row.position, tokens.shape[1]
    places = list(_places(media, start, length, cast("Mapping[bytes, Features]", images)))
    positions = positions_of(media, start, length)
    is_row = np.array_equal(positions, np.broadcast_to(positions[0, 0] + np.arange(length), positions.shape))
    offset = int(positions[0, 0]) if is_row else from_numpy(positions)
    if not places and is_row and offset == start:
        return Pass(tokens, caches)
    runs = [(int(at[0]), int(at[-1]) + 1) for at, _, _ in places] if scheme.is_whole else []
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
    tokens = mx.array(tokens)
    for at, _, _ in places:
        tokens[0, from_numpy(at)] = 0
    embeddings = model.embed_tokens(tokens)
    scale = getattr(model, "embed_scale", 1)  # Gemma 4 scales what it takes in place of tokens, but not features
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
