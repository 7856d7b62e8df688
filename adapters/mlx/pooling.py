"""Vectors and scores: one pass over the ends of several texts behind a common state.

The rows of a pass are padded on the right. In a causal model no position sees a later one, so the padding changes no
row, whatever the layers are: attention, windows, recurrent states. The caches of the common beginning are repeated once
a row, take part in the pass, and are dropped with it.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

from adapters.mlx.caches.leaves import Caches, new_caches
from adapters.mlx.caches.rows import repeated
from adapters.mlx.runtime.arrays import checked_tokens, evaluate
from adapters.mlx.speculation.drafting import DraftingNetwork
from adapters.mlx.speculation.heads import logits_of, text_model
from domain.errors import ComputeFailed
from domain.id_row import IdRow
from domain.models.capability import Capability, PoolingMethod, PoolingProfile
from domain.request.pooling import Pooling

EPSILON = 1e-12
"""The least length by which a vector is divided, as in PyTorch's `normalize`."""


def pool_rows(
    network: Any,
    caches: Caches,
    position: int,
    rows: Sequence[Sequence[int]],
    profile: PoolingProfile | None,
    pooling: Pooling,
    vocab_size: int,
) -> list[bytes]:
    """Returns one value a row, see `PoolingRows.pool`. `caches`: plain ones at `position`, unchanged."""
    if profile is None or (pooling.task is Capability.SCORE and profile.score_ids is None):
        raise ComputeFailed(f"this model cannot {pooling.task.value}")
    if position and pooling.task is Capability.EMBED and profile.method is PoolingMethod.MEAN:
        raise ComputeFailed("a mean over all tokens needs the whole text in one row")
    longest = max(map(len, rows))
    padded = IdRow.joined(IdRow(row).followed_by([0] * (longest - len(row))) for row in rows)
    tokens = mx.unflatten(checked_tokens(padded, vocab_size), 0, (len(rows), longest))
    hidden = hidden_states(network, tokens, caches)
    ends = mx.array([len(row) for row in rows])
    if pooling.task is Capability.SCORE:
        assert profile.score_ids is not None
        logits = logits_of(trunk_of(network), _last(hidden, ends))[:, mx.array(profile.score_ids)].astype(mx.float32)
        found = mx.sigmoid(logits[:, :1] - logits[:, 1:])
    else:
        found = _pooled(hidden, ends, profile, pooling.dimensions)
    evaluate([found])
    return [row.tobytes() for row in np.array(found).astype("<f4")]


def trunk_of(network: Any) -> Any:
    """The network that the logits come from, without a drafter."""
    return network.trunk if isinstance(network, DraftingNetwork) else network


def hidden_states(network: Any, tokens: mx.array, caches: Caches) -> mx.array:
    """Feeds tokens [rows, length] behind a state, which is repeated for every row and unchanged. Returns hidden states
    [rows, length, hidden] behind the final norm; lazy."""
    trunk = trunk_of(network)
    batch = repeated(caches[: len(new_caches(trunk))], tokens.shape[0])
    return cast(mx.array, text_model(trunk).model(tokens, cache=batch))


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
