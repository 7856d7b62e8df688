"""A leaf that holds hidden states: of the last token only, or of every token where the trunk can be cut back.

Beside a trunk with recurrent layers it is one more recurrent state. Beside any other it keeps every token, like keys
and values, because a recurrent state would keep the whole model from being cut back to earlier positions.
"""

from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.classes import lib
from adapters.mlx.caches.leaves import Caches, leaves


def hidden_cache(trunk: Caches) -> Any:
    """A fresh plain leaf to stand beside the caches of a trunk."""
    is_recurrent = any(type(cache) is lib.ArraysCache for cache in leaves(trunk))
    return lib.ArraysCache(1) if is_recurrent else lib.KVCache()


def last_hidden(leaf: Any) -> mx.array | None:
    """The hidden state of the last token, [rows, 1, hidden]; None before the first one."""
    if type(leaf) is lib.ArraysCache:
        return cast(mx.array | None, leaf.cache[0])
    if leaf.keys is None:
        return None
    return mx.concatenate([half[..., -1:, :] for half in leaf.keys_and_values()], axis=-1)[:, 0]


def keep_hidden(leaf: Any, hidden: mx.array) -> None:
    """Appends hidden states [rows, length, hidden]. A leaf of full KV holds one half as keys, the other as values."""
    if type(leaf) is lib.ArraysCache:
        leaf.cache[0] = hidden[:, -1:]
    else:
        leaf.update_and_fetch(*mx.split(hidden[:, None], 2, axis=-1))
