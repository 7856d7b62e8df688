"""Full KV of one sequence: its buffer has as many slots as its length says, whatever the way there was."""

from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.caches.classes import lib, traits_of
from adapters.mlx.caches.kv_rows import KVRows, grow
from adapters.mlx.caches.leaves import cut_back, spare_tokens
from adapters.mlx.caches.rows import make_room, make_room_ahead
from domain.memory.shape import buffer_slots

STEP = 256


def tokens(start: int, end: int) -> mx.array:
    """[1, 1, tokens, 2]; each knows its position."""
    numbers = mx.arange(start, end, dtype=mx.float32)
    return mx.stack([numbers, -numbers], axis=-1)[None, None]


def feed(cache: Any, count: int, *, ahead: bool = True) -> mx.array:
    (make_room_ahead if ahead else make_room)([cache], count)
    start = cache.offset
    seen, _ = cache.update_and_fetch(tokens(start, start + count), tokens(start, start + count))
    return seen


def filled(*chunks: int) -> Any:
    cache = lib.KVCache()
    for count in chunks:
        feed(cache, count)
    return cache


def num_slots(cache: Any) -> int:
    return cache.keys.shape[-2]


@pytest.mark.parametrize(
    "chunks", [[200], [200, 100], [512] * 17, [2048] * 5, [8192, 256], [7000, 1500, 1, 700], [256, 8192, 1024, 5]]
)
def test_slots_are_those_of_the_length_and_the_tokens_are_all_there(chunks: list[int]) -> None:
    cache, seen = lib.KVCache(), tokens(0, 0)
    for count in chunks:
        seen = feed(cache, count)
        assert num_slots(cache) == buffer_slots(cache.offset, STEP)
    assert mx.array_equal(seen, tokens(0, sum(chunks)))
    assert num_slots(cache) == cache.offset + spare_tokens(cache, cache.offset), "as it would be restored"


def test_a_long_one_is_copied_once_in_many_turns() -> None:
    cache, copies = filled(65_536, 1), 0
    for _ in range(36):
        had = num_slots(cache)
        feed(cache, 444)
        copies += num_slots(cache) != had
    assert copies == 3, "by mlx-lm's own rule it is once a turn"


def test_decoding_alone_finds_room_before_the_pass() -> None:
    cache = filled(8_192, 512)
    assert num_slots(cache) == cache.offset
    seen = feed(cache, 1, ahead=False)
    assert num_slots(cache) == buffer_slots(8_705, STEP) == 9_216
    assert mx.array_equal(seen, tokens(0, 8_705))


@pytest.mark.parametrize("position", [8_192, 8_448, 8_704])
def test_what_is_cut_back_finds_the_room_that_prefill_finds_there(position: int) -> None:
    cache = filled(8_192, 1_500)
    cut_back(cache, 9_692, position)
    assert num_slots(cache) == buffer_slots(position, STEP)
    assert mx.array_equal(feed(cache, 300), tokens(0, position + 300))
    assert num_slots(cache) == num_slots(filled(8_192, *([position - 8_192] if position > 8_192 else []), 300))


def test_rows_of_a_batch_have_the_slots_of_the_longest() -> None:
    rows = KVRows(filled(8_192, 512))
    rows.append([filled(300)], 2)
    make_room([rows], 1)
    assert rows.num_slots == buffer_slots(8_705, STEP)


def test_every_other_class_grows_as_it_likes() -> None:
    for cache in (lib.QuantizedKVCache(), lib.RotatingKVCache(max_size=8), lib.ConcatenateKVCache(), lib.KVCache()):
        assert traits_of(cache) is not None
        assert grow(cache, 10) == [], "nothing was computed yet, or it is none of ours"
