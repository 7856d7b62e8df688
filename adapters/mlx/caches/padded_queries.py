"""Attention of the end of a prompt as of a few more tokens than there are, so that a plan of cuDNN's is met again.

cuDNN makes a plan for every pair of lengths that is new, on the host, for 45 to 110 ms of an H100: as long as it then
computes 428 tokens on 78,000. Asked for more queries, and as many more keys behind the others, it finds the same for
those that there are, since each query sees the keys up to its own:

    queries  |-- q --|-pad-|                 filled up with zeros, what they find is dropped
    keys     |---- before ----|-- q --|-pad-|  slots of the buffer that are free: nobody but the padding sees them

They are what the cache gave, and not what a family made of that: a plain cache remembers what it gave last
(`remember_fetches`). cuDNN multiplies what is not seen by nought, which infinite numbers and those that are none
survive. Buffers begin with zeros; one that was cut back has tokens in its free slots, and is left alone until others
are in their place (`note_stale`).

Lengths are rounded up to a multiple of UNIT, or further, to one that there is a plan for already. Such plans are made
while nothing runs (`plan`): a conversation goes on where its last turn ended, with no more than AHEAD new tokens most
often, so that the pair is known before the prompt is. A buffer that is full is another one by then. Whole chunks of the
grid are multiples of UNIT, and are computed as ever.

Which plans there are, and what lies in free slots, depends on what was asked before, and a kernel may add in another
order for other lengths. Where bits are promised (`is_exact`) nothing goes this way.
"""

from collections import OrderedDict
from typing import Any, NamedTuple
from weakref import ref

import mlx.core as mx

from adapters.mlx.arrays import evaluate
from adapters.mlx.caches.fused_rows import Attention, is_fusible
from adapters.mlx.caches.library import lib
from adapters.mlx.caches.short_queries import is_noting

UNIT = 64
"""What plans are made for multiples of."""

AHEAD = 512
"""New tokens that a turn is expected to have at most; more are computed in several chunks."""

MIN_QUERIES = 9
"""Fewer have kernels of MLX's own, without a plan."""

MAX_PLANS = 96
"""Remembered to be there: half of what MLX keeps (`composition.backends`), the others are of whole chunks."""

MAX_SPARE_PAIRS = 40_000_000
"""Of padding and keys: what an H100 computes in 36 layers of 32 heads while the host would make a plan."""

_STALE, _FETCHED, _OWN_FETCH = "cairn_stale_end", "cairn_fetched", "cairn_update_and_fetch"

_fast: Any = mx.fast


class _Heads(NamedTuple):
    """Layers that share plans, as far as a cache tells: of keys, and of the widths of keys and values."""

    groups: int
    dim: int
    value_dim: int
    dtype: mx.Dtype


class _Plan(NamedTuple):
    heads: _Heads
    num_heads: int
    slots: int
    num_queries: int
    num_keys: int


class PaddedQueries:
    """Compute thread only. It remembers which plans there are, and what kinds of layers were asked. `is_exact`: what
    is found must follow from the tokens alone, to the bit."""

    is_exact = False

    def __init__(self, attend: Attention = _fast.scaled_dot_product_attention) -> None:
        """`attend`: MLX's own, replaced by tests only."""
        self._attend = attend
        self._plans: OrderedDict[_Plan, None] = OrderedDict()
        self._refused: _Plan | None = None
        self._asked: dict[_Heads, tuple[int, float]] = {}

    def __call__(
        self, queries: mx.array, keys: Any, values: Any, cache: Any, scale: float, mask: Any
    ) -> mx.array | None:
        """Of a plain cache that gave these keys and values. None: not by this way."""
        if self.is_exact or not _may_pad(queries, keys, values, cache, mask):
            return None
        num_queries, before = queries.shape[2], keys.shape[2] - queries.shape[2]
        heads = _Heads(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)
        self._asked[heads] = queries.shape[1], scale
        slots = cache.keys.shape[2]
        size = self._size(heads, queries.shape[1], slots, num_queries, before)
        if before + size > slots:
            return None
        self._note(_Plan(heads, queries.shape[1], slots, size, before + size))
        padded = mx.pad(queries, [(0, 0), (0, 0), (0, size - num_queries), (0, 0)])
        kept, given = cache.keys[..., : before + size, :], cache.values[..., : before + size, :]
        return self._attend(padded, kept, given, scale=scale, mask="causal")[:, :, :num_queries]

    def plan(self, cache: Any, position: int) -> bool:
        """Have a plan for what may come next of a state that is kept, from `position` on: AHEAD tokens, or as many as
        its buffer has room for. False where there is one, there is no room, or nothing is known of such layers. Raises
        what computing raises."""
        if type(cache) is not lib.KVCache or cache.keys is None:
            return False
        keys, values = cache.keys, cache.values
        heads = _Heads(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)
        size = min(AHEAD, (keys.shape[2] - position) // UNIT * UNIT)
        if (asked := self._asked.get(heads)) is None or size < UNIT or not _has_zeros(cache, position):
            return False
        num_heads, scale = asked
        num_keys = position + size
        plan = _Plan(heads, num_heads, keys.shape[2], size, num_keys)
        if plan in self._plans or plan == self._refused:
            return False
        self._refused = plan  # until it is there: what fails is not tried again
        queries = mx.zeros((1, num_heads, size, heads.dim), heads.dtype)
        kept, given = keys[..., :num_keys, :], values[..., :num_keys, :]
        evaluate([self._attend(queries, kept, given, scale=scale, mask="causal")])
        self._refused = None
        self._note(plan)
        return True

    def _size(self, heads: _Heads, num_heads: int, slots: int, num_queries: int, before: int) -> int:
        """How many queries to ask for: the fewest that there is a plan for, or else a multiple of UNIT."""
        least = -(-num_queries // UNIT) * UNIT
        for size in range(least, AHEAD + 1, UNIT):
            if (size - num_queries) * (before + size) > MAX_SPARE_PAIRS:
                break
            if _Plan(heads, num_heads, slots, size, before + size) in self._plans:
                return size
        return least

    def _note(self, plan: _Plan) -> None:
        self._plans[plan] = None
        self._plans.move_to_end(plan)
        while len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)


def _may_pad(queries: mx.array, keys: Any, values: Any, cache: Any, mask: Any) -> bool:
    """Of one sequence, a number of tokens that is not whole, over what the buffer has, of a type and width that is
    fused."""
    rows, _, num_queries, _ = queries.shape
    return (
        rows == 1
        and num_queries >= MIN_QUERIES
        and num_queries % UNIT != 0
        and not is_noting()
        and isinstance(mask, str)
        and mask == "causal"
        and is_fusible(queries, keys, values)
        and _is_what_was_fetched(cache, keys, values)
        and _has_zeros(cache, cache.offset)
    )


def remember_fetches() -> None:
    """From now on each plain cache remembers what it gave last. Repeating it does nothing."""
    plain = lib.KVCache
    if plain.update_and_fetch is not _fetch:
        setattr(plain, _OWN_FETCH, plain.update_and_fetch)
        plain.update_and_fetch = _fetch


def _fetch(cache: Any, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
    """In place of a plain cache's own."""
    found: tuple[mx.array, mx.array] = getattr(cache, _OWN_FETCH)(keys, values)
    setattr(cache, _FETCHED, tuple(map(ref, found)))
    return found


def _is_what_was_fetched(cache: Any, keys: object, values: object) -> bool:
    fetched = getattr(cache, _FETCHED, None)
    return fetched is not None and fetched[0]() is keys and fetched[1]() is values


def note_stale(cache: Any, end: int) -> None:
    """A plain cache was cut back: before `end` its free slots hold tokens that were. Nothing for other classes."""
    if type(cache) is lib.KVCache and cache.offset < end:
        setattr(cache, _STALE, max(end, getattr(cache, _STALE, 0)))


def _has_zeros(cache: Any, num_tokens: int) -> bool:
    """In the slots behind so many tokens."""
    return bool(getattr(cache, _STALE, 0) <= num_tokens)


__all__ = ("AHEAD", "MAX_PLANS", "UNIT", "PaddedQueries", "note_stale", "remember_fetches")
