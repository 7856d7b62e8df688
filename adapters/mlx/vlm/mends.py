"""Defects of mlx-vlm's families, mended by binding a name of the family's module to something else.

A prefix cache would keep what they compute wrongly; the load's check (`loading.pieces`) finds both without the mends.
Each mend is done once, before a network of the family is made.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.classes import Composite, PlainKV
from adapters.mlx.caches.pooled import PooledTokens
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.vlm.library import vlm_module

_OVERLAPPED = 4
"""The size of the pooled groups that overlap."""

_MOST_SCORES = 2**25
"""Scores, of all heads, that are held at once: 128 MiB."""


@cache
def mend(family: str) -> None:
    """Mends a family that needs it, and what all families share. Raises ImportError."""
    # mlx-vlm's scaled positions have other frequencies from a length on, by the longest row and the pass: keys of
    # earlier passes keep the shorter ones. mlx-lm's are always those of long prompts.
    vlm_module("models.rope_utils").SuScaledRoPE = mlx_lm_module("models.rope_utils").SuScaledRoPE
    if family in _MENDS:
        _MENDS[family]()


def _mend_hy_v4() -> None:
    """The selection of keys is compiled for any length, and keeps the place of the length that it saw first."""
    vlm_module("models.hy_v4.indexer")._partition_scores = _partition_scores
    vlm_module("models.hy_v4.language").HyV4KVCache = PlainKV  # it only grows by other steps


def _partition_scores(top_k: int, masked: bool) -> Callable[..., mx.array]:
    """As mlx-vlm's, not compiled."""

    def partition(q: mx.array, k: mx.array, weights: mx.array, mask: mx.array | None = None) -> mx.array:
        scores = mx.maximum(q @ k.swapaxes(-1, -2), 0) * weights.swapaxes(-1, -2)[..., None]
        scores = scores.sum(axis=1, keepdims=True)
        if masked:
            scores = mx.where(cast(mx.array, mask), scores, -mx.inf)
        return mx.argpartition(scores, kth=-top_k, axis=-1)

    return partition


def _mend_deepseek_v4() -> None:
    """Pooled groups of four overlap, and nothing carries the last one over a pass. A selection of blocks before that of
    keys depends on the number of keys in the pass, and leaves out the newest."""
    language = vlm_module("models.deepseek_v4.language")
    language.PoolingCache = _pooled_tokens
    language.CacheList = Composite  # the forward pass asks for it by type
    language.hisa_select = _selected
    language.Indexer._hisa_select = _selected_at_end


def _pooled_tokens(ratio: int) -> PooledTokens:
    return PooledTokens(ratio, overlaps=ratio == _OVERLAPPED)


def _selected(
    q: mx.array,
    pooled: mx.array,
    weights: mx.array,
    scale: float,
    k: int,
    index_block: int,
    index_keep: int,
    valid_len: mx.array,
) -> mx.array:
    """The `k` best keys of each query [rows, length, k], of all that it sees: for as many queries at a time as keep
    the scores small."""
    _, heads, length, _ = q.shape
    keys, places = pooled.astype(mx.float32)[:, None].swapaxes(-1, -2), mx.arange(pooled.shape[1])
    step, found = max(1, _MOST_SCORES // (heads * pooled.shape[1])), list[mx.array]()
    for start in range(0, length, step):
        part = slice(start, start + step)
        scores = mx.maximum(q[:, :, part].astype(mx.float32) @ keys, 0) * scale
        scores = (scores * weights[:, part].swapaxes(-1, -2)[..., None]).sum(axis=1)
        scores = mx.where(places < valid_len[:, part, None], scores, mx.finfo(mx.float32).min)
        found.append(mx.argpartition(-scores, kth=k - 1, axis=-1)[..., :k])
    return mx.concatenate(found, axis=1)


def _selected_at_end(indexer: Any, q: mx.array, pooled: mx.array, x: mx.array, k: int) -> mx.array:
    """The same for one query, which sees all keys."""
    weights = indexer.weights_proj(x).astype(mx.float32) * indexer.n_heads**-0.5
    return _selected(q, pooled, weights, indexer.scale, k, 0, 0, mx.full(x.shape[:2], pooled.shape[1]))


def _mend_glm5_next() -> None:
    """Keys and values of a prompt are kept beside their latents, as long as it is computed in long chunks: state that
    depends on the division of a prompt, and by which a restored one would be computed."""
    vlm_module("models.glm5_next.language")._MAX_PROJECTED_PREFILL_TOKENS = 0


_MENDS: Mapping[str, Callable[[], Any]] = {
    "glm5_next": _mend_glm5_next,
    "hy_v4": _mend_hy_v4,
    "deepseek_v4": _mend_deepseek_v4,
}
