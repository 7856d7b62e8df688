"""Vectors and scores: one pass over the ends of several texts behind a common state.

The rows of a pass are padded on the right. In a causal model no position sees a later one, so the padding changes no
row, whatever the layers are: attention, windows, recurrent states. The caches of the common beginning are repeated once
a row, take part in the pass, and are dropped with it.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

from adapters.mlx.caches.leaves import Caches
from adapters.mlx.caches.rows import repeated
from adapters.mlx.runtime.arrays import checked_tokens
from adapters.mlx.speculation.heads import text_model
from domain.errors import ComputeFailed
from domain.models.capability import Capability, PoolingMethod, PoolingProfile
from domain.request.pooling import Pooling

EPSILON = 1e-12
"""The least length by which a vector is divided, as in PyTorch's `normalize`."""


def pool_rows(
    network: Any,
    caches: Caches,
    rows: Sequence[Sequence[int]],
    profile: PoolingProfile | None,
    pooling: Pooling,
    vocab_size: int,
) -> list[bytes]:
    """Returns one value a row, see `PoolingRows.pool`. `caches`: plain ones, unchanged."""
    if profile is None or (pooling.task is Capability.SCORE and profile.score_ids is None):
        raise ComputeFailed(f"this model cannot {pooling.task.value}")
    longest = max(map(len, rows))
    padded = mx.stack([mx.pad(checked_tokens(row, vocab_size), (0, longest - len(row))) for row in rows])
    hidden = cast(mx.array, text_model(network).model(padded, cache=repeated(caches, len(rows))))
    ends = mx.array([len(row) for row in rows])
    if pooling.task is Capability.SCORE:
        assert profile.score_ids is not None
        logits = logits_of(network, _last(hidden, ends))[:, mx.array(profile.score_ids)].astype(mx.float32)
        found = mx.sigmoid(logits[:, :1] - logits[:, 1:])
    else:
        found = _pooled(hidden, ends, profile, pooling.dimensions)
    mx.eval(found)
    return [np.array(row).astype("<f4").tobytes() for row in found]


def logits_of(network: Any, hidden: mx.array) -> mx.array:
    """Applies a network's output matrix to hidden states behind the final norm."""
    text = text_model(network)
    return cast(mx.array, text.lm_head(hidden) if "lm_head" in text else text.model.embed_tokens.as_linear(hidden))


def _pooled(hidden: mx.array, ends: mx.array, profile: PoolingProfile, dimensions: int | None) -> mx.array:
    """Returns vectors [rows, dimensions] in float32 of hidden states [rows, length, hidden]."""
    if profile.method is PoolingMethod.LAST:
        found = _last(hidden, ends).astype(mx.float32)
    else:
        is_text = (mx.arange(hidden.shape[1])[None] < ends[:, None])[..., None]
        found = mx.where(is_text, hidden.astype(mx.float32), 0).sum(axis=1) / ends[:, None]
    if dimensions is not None:
        found = found[:, :dimensions]
    if profile.is_normalized or dimensions is not None:
        found = found / mx.maximum(mx.linalg.norm(found, axis=-1, keepdims=True), EPSILON)
    return found


def _last(hidden: mx.array, ends: mx.array) -> mx.array:
    """Returns the hidden states [rows, hidden] of each row's last token."""
    return mx.take_along_axis(hidden, (ends - 1)[:, None, None], axis=1)[:, 0]
