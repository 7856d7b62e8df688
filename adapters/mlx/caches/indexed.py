"""Full KV with the keys of an index that selects what is attended to, used by mlx-vlm's families as its own class is.

The index is made of blocks of tokens. A block's key is the mean of its tokens' keys, which are kept, turned by the
position of its first token; so blocks are computed again after a restore, and positions are the tokens' own places.
"""

from typing import Any

import mlx.core as mx

from adapters.mlx.caches.kv_rows import lib


class IndexedKV(lib.KVCache):  # type: ignore[misc]
    """The cache of one sequence in one layer. `index_keys`: [1, tokens, dim], of every token; `index_block_keys`: of
    whole blocks of `index_block_ratio` tokens, None where they are to be computed."""

    index_keys: mx.array | None = None
    index_block_keys: mx.array | None = None
    index_block_ratio: int | None = None

    def update_indexer(self, keys: mx.array, position_ids: Any) -> tuple[mx.array, mx.array]:
        """Takes the next tokens' keys; returns those of all tokens, and their positions."""
        self.index_keys = keys if self.index_keys is None else mx.concatenate([self.index_keys, keys], axis=1)
        positions = mx.arange(self.index_keys.shape[1], dtype=position_ids.dtype)
        return self.index_keys, mx.broadcast_to(positions, (*position_ids.shape[:-1], self.index_keys.shape[1]))

    def cut_index(self, position: int) -> None:
        """Brings the index back to the first tokens."""
        if self.index_keys is not None:
            self.index_keys = self.index_keys[:, :position]
        self.index_block_keys = self.index_block_ratio = None
