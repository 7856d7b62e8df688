"""Vectors and scores: one pass over the ends of several texts behind a common state, or over whole texts.

The rows of a pass are padded on the right. In a causal model no position sees a later one, so the padding changes no
row, whatever the layers are: attention, windows, recurrent states. The caches of the common beginning are repeated once
a row, take part in the pass, and are dropped with it. An encoder has no caches; its padding is masked (`encoder`).
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from adapters.mlx.caches.leaves import Caches
from adapters.mlx.caches.rows import repeated
from adapters.mlx.runtime.arrays import checked_tokens, evaluate
from adapters.mlx.speculation.heads import logits_of, text_model
from adapters.mlx.vlm.encoder import encoded, is_scorer
from domain.id_row import IdRow
from domain.models.capability import Pooling

EPSILON = 1e-12
"""The least length by which a vector is divided, as in PyTorch's `normalize`."""


def pool_rows(
    network: Any, caches: Caches, rows: Sequence[Sequence[int]], pooling: Pooling, vocab_size: int
) -> list[bytes]:
    """Returns the numbers of each row, see `LoadedModel.pool`. `caches`: plain ones, unchanged; none: an encoder."""
    longest = max(map(len, rows))
    padded = IdRow.joined(IdRow(row).followed_by([0] * (longest - len(row))) for row in rows)
    tokens = mx.unflatten(checked_tokens(padded, vocab_size), 0, (len(rows), longest))
    ends = mx.array([len(row) for row in rows])[:, None]
    if caches:
        hidden = text_model(network).model(tokens, cache=repeated(caches, len(rows)))
    else:
        hidden = encoded(network, tokens, ends)
    if not caches and is_scorer(network):
        return _as_bytes(mx.sigmoid(hidden.astype(mx.float32)))
    at = mx.zeros_like(ends) if pooling.is_first else ends - 1
    last = mx.take_along_axis(hidden, at[..., None], axis=1)[:, 0]
    if pooling.score_ids is not None:
        logits = logits_of(network, last)[:, mx.array(pooling.score_ids)].astype(mx.float32)
        found = mx.sigmoid(logits[:, :1] - logits[:, 1:])
    else:
        if pooling.is_mean:
            is_text = (mx.arange(longest) < ends)[..., None]
            last = mx.where(is_text, hidden.astype(mx.float32), 0).sum(axis=1) / ends
        found = last.astype(mx.float32)[:, : pooling.dimensions]
        if pooling.is_normalized or pooling.dimensions is not None:
            found = found / mx.maximum(mx.linalg.norm(found, axis=-1, keepdims=True), EPSILON)
    return _as_bytes(found)


def _as_bytes(found: mx.array) -> list[bytes]:
    evaluate([found])
    return [row.tobytes() for row in np.array(found).astype("<f4")]
