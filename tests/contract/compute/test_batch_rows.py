"""Rows of a batch: each stays what it was alone when others join or leave; joining and leaving take one layer's bytes.

Bytes are MLX's own count, which does not depend on how fast anything is.
"""

import random
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.caches.classes import lib
from adapters.mlx.caches.kv_rows import KVRows
from adapters.mlx.caches.leaves import Caches, leaves, live_arrays
from adapters.mlx.caches.quantised import QuantisedKV, sides_of
from adapters.mlx.caches.rollback import Rollback
from adapters.mlx.caches.rows import append_rows, fork, give_back, keep_rows, make_room, merge, take_row
from domain.memory.kv_bits import KVBits
from domain.scheduling.decode_groups import rows_capacity, rows_in_place
from tests.support.effort import drawn

HEADS, DIM, WINDOW = 2, 4, 12


def tokens(sequence: int, start: int, end: int, dim: int = DIM) -> mx.array:
    """[1, heads, tokens, dim]: each value names its sequence and position."""
    values = mx.arange(start, end, dtype=mx.float32)[None, None, :, None] + 1000 * sequence
    return mx.contiguous(mx.broadcast_to(values, (1, HEADS, end - start, dim)))


def feed(
    caches: Caches, sequences: list[int], starts: list[int], count: int, num_right: int | None = None
) -> list[tuple[mx.array, ...]]:
    """The next `count` tokens of every row, of another sequence after `num_right`; what attention over each token cache
    then sees."""
    seen: list[tuple[mx.array, ...]] = []
    for cache in leaves(caches):
        new = [tokens(one, at, at + count) for one, at in zip(sequences, starts, strict=True)]
        for one in new if num_right is not None else ():
            one[:, :, num_right:] = 500_000
        if isinstance(cache, lib.ArraysCache):
            cache[0] = mx.concatenate([one[:, 0, -1] for one in new])
        else:
            mask = cache.make_mask(count, return_array=True, window_size=None) if count == 1 or num_right else None
            keys, values = cache.update_and_fetch(mx.concatenate(new), -mx.concatenate(new))
            seen.append((keys, values) if mask is None or isinstance(mask, str) else (keys, values, mask))
    return seen


LAYERS: dict[str, Callable[[], Caches]] = {
    "full": lambda: [lib.KVCache(), lib.KVCache()],
    "quantised": lambda: [QuantisedKV(sides_of(KVBits(8, 8), DIM, DIM)), lib.KVCache()],
    "windowed": lambda: [lib.RotatingKVCache(WINDOW), lib.KVCache()],
    "recurrent": lambda: [lib.ArraysCache(2), lib.ArraysCache(2)],
    "composite": lambda: [lib.CacheList(lib.ArraysCache(2), lib.KVCache()), lib.CacheList(lib.KVCache())],
}


def alone(layers: str, sequence: int, length: int) -> Caches:
    caches = LAYERS[layers]()
    feed(caches, [sequence], [0], length)
    return caches


def contents(caches: Caches, sequence: int, length: int) -> None:
    """Plain caches hold exactly this sequence."""
    for cache in leaves(caches):
        if isinstance(cache, lib.ArraysCache):
            assert cache[0].tolist() == tokens(sequence, length - 1, length)[:, 0, -1].tolist()
            assert cache[1] is None
            continue
        assert cache.offset == length
        keys, values = cache.keys_and_values()
        in_use = cache.size()
        assert keys.shape[2] >= in_use
        expected = tokens(sequence, length - in_use, length)
        assert mx.array_equal(keys[:, :, -in_use:] if keys.shape[2] > in_use else keys, expected)
        assert mx.array_equal(values[:, :, -in_use:] if keys.shape[2] > in_use else values, -expected)


def seen_by_row(seen: list[tuple[mx.array, ...]], row: int, query: int = 0) -> list[list[float]]:
    """The keys that the mask lets a row's query see, of each token cache, in order of position."""
    found: list[list[float]] = []
    for keys, values, *masks in seen:
        told = masks[0][row, 0, query].tolist() if masks else [True] * keys.shape[2]
        visible = [at for at, is_seen in enumerate(told) if is_seen]
        assert mx.array_equal(keys[row], -values[row])
        found.append(sorted(keys[row, 0, at, 0].item() for at in visible))
    return found


def expected_by_row(layers: str, sequence: int, length: int) -> list[list[float]]:
    windows = [getattr(one, "max_size", length) for one in leaves(LAYERS[layers]()) if not _is_recurrent(one)]
    return [[1000.0 * sequence + at for at in range(max(0, length - window), length)] for window in windows]


def verified(
    layers: str, batch: Caches, rows: list[tuple[int, int]], width: int, num_right: int
) -> list[tuple[int, int]]:
    """The rows, each with its length, after a pass of several tokens that was undone but for the right ones."""
    sequences, starts = [one for one, _ in rows], [length for _, length in rows]
    rollback = Rollback(batch)
    make_room(batch, width)
    seen = feed(batch, sequences, starts, width, num_right)
    for index, (one, length) in enumerate(rows):
        for query in range(num_right):
            assert seen_by_row(seen, index, query) == expected_by_row(layers, one, length + query + 1)
    if num_again := rollback.undo(width, num_right):
        make_room(batch, num_again)
        feed(batch, sequences, starts, num_again)
    return [(one, length + num_right) for one, length in rows]


def _is_recurrent(cache: Any) -> bool:
    return isinstance(cache, lib.ArraysCache)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("seed", range(drawn(8)))
def test_every_row_sees_its_own_tokens_whoever_comes_and_goes(layers: str, seed: int) -> None:
    chance = random.Random(seed)
    rows = [(0, chance.randint(1, 300))]
    batch = alone(layers, *rows[0])
    for turn in range(1, 25):
        action = chance.choice(["join", "join", "keep_live", "step", "step", "verify", "verify"])
        if action == "join" or len(rows) == 1:
            newcomer = (turn, chance.choice([1, 5, chance.randint(1, 40), chance.randint(1, 600)]))
            row = alone(layers, *newcomer)
            others = [(turn + 100 * more, chance.randint(1, 90)) for more in range(1, chance.randint(1, 3))]
            newcomers = [row, *(alone(layers, *other) for other in others)]
            append_rows(batch, len(rows), newcomers, rows_capacity(len(rows) + 1))
            rows += [newcomer, *others]
        elif action == "keep_live" and len(rows) > 2:
            order = rows_in_place(len(rows), sorted(chance.sample(range(len(rows)), chance.randint(2, len(rows) - 1))))
            keep_rows(batch, order)
            rows = [rows[index] for index in order]
        elif action == "verify":
            width = chance.randint(2, 6)
            rows = verified(layers, batch, rows, width, chance.randint(1, width))
        else:
            make_room(batch, 1)
            seen = feed(batch, [one for one, _ in rows], [length for _, length in rows], 1)
            rows = [(one, length + 1) for one, length in rows]
            for index, row_of in enumerate(rows):
                assert seen_by_row(seen, index) == expected_by_row(layers, *row_of)
        index = chance.randrange(len(rows))
        contents(take_row(batch, index), *rows[index])
    contents(take_row(batch, 0, is_last=True), *rows[0])


def test_rows_of_equal_lengths_need_no_mask_until_another_comes() -> None:
    batch = merge([alone("full", 0, 30), alone("full", 1, 30)])
    for rows, lengths in (((0, 1), (30, 30)), ((0, 1, 2), (31, 31, 9)), ((0, 1), (32, 32))):
        if len(rows) == 3:
            append_rows(batch, 2, [alone("full", 2, 9)], 3)
        else:
            keep_rows(batch, [0, 1])
        make_room(batch, 1)
        assert all((cache.make_mask(1) is None) == (len(rows) == 2) for cache in batch)
        assert all(cache.make_mask(1, window_size=8) is not None and cache.make_mask(2) is not None for cache in batch)
        seen = feed(batch, list(rows), list(lengths), 1)
        for index, row in enumerate(rows):
            assert seen_by_row(seen, index) == expected_by_row("full", row, lengths[index] + 1)


@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("layers", LAYERS)
def test_a_failed_join_leaves_both_as_they_were(layers: str, num_rows: int) -> None:
    """The last leaf of the newcomer fits no other."""
    rows = [(index, 20 + 7 * index) for index in range(num_rows)]
    batch = alone(layers, *rows[0])
    append_rows(batch, 1, [alone(layers, *row) for row in rows[1:]], num_rows)
    newcomers = [(8, 50), (9, 300)]
    joining = [alone(layers, *row) for row in newcomers]
    odd = alone(layers, 7, 70)
    last = list(leaves(odd))[-1]
    if _is_recurrent(last):
        last[0] = mx.zeros((1, DIM + 1))
    else:
        last.keys = mx.concatenate([last.keys, last.keys], axis=1)
    with pytest.raises(ValueError, match=r".+"):
        append_rows(batch, num_rows, [*joining, odd], num_rows + 3)
    if num_rows == 1:
        contents(fork(batch), *rows[0])
    for caches, row in zip(joining, newcomers, strict=True):
        contents(fork(caches), *row)
    append_rows(batch, num_rows, joining, num_rows + 2)
    for index, row in enumerate([*rows, *newcomers]):
        contents(take_row(batch, index), *row)


def test_what_a_row_left_behind_reaches_nobody() -> None:
    """A masked value times zero is not zero when it is infinite or no number."""
    poisoned = alone("full", 1, 300)
    for cache in poisoned:
        cache.values[...] = mx.array(float("nan"))
    batch = merge([alone("full", 0, 300), alone("full", 2, 300), poisoned])
    keep_rows(batch, [0, 1])
    append_rows(batch, 2, [alone("full", 3, 10)], 3)
    for cache in batch:
        assert type(cache) is KVRows
        assert mx.isfinite(cache.keys_and_values()[1]).all().item()


def test_padding_and_room_that_nobody_needs_are_given_back() -> None:
    batch = merge([alone("full", 0, 2000), *(alone("full", one, 100) for one in range(1, 12))])
    (cache, _) = batch
    before = cache.keys.nbytes
    keep_rows(batch, rows_in_place(12, range(1, 12)))
    assert cache.keys.nbytes < before // 6
    keep_rows(batch, [0, 1])
    assert cache.capacity == 2


# ---- bytes ---------------------------------------------------------------------------------------------------------

NUM_LAYERS, NUM_TOKENS, NUM_SLOTS = 12, 255, 256
WIDE = 16 * DIM
ROW_LAYER = 2 * HEADS * WIDE * NUM_SLOTS * 4
PAGE = 4096
SLACK = (2 * NUM_LAYERS + 1) * PAGE
"""A page an array, which the C library may round up to, and offsets and paddings: less than half of a row's layer."""


def full_row(num_tokens: int = NUM_TOKENS) -> Caches:
    return filled([lib.KVCache() for _ in range(NUM_LAYERS)], num_tokens)


def windowed_row() -> Caches:
    return filled([lib.RotatingKVCache(NUM_TOKENS) for _ in range(NUM_LAYERS)], NUM_TOKENS)


def filled(caches: Caches, num_tokens: int) -> Caches:
    for cache in caches:
        cache.update_and_fetch(*[mx.tile(tokens(0, 0, num_tokens), (1, 1, 1, WIDE // DIM)) for _ in range(2)])
    mx.eval(live_arrays(caches))
    return caches


def bytes_beyond(work: Callable[[], object]) -> int:
    """The most that was held at any moment of `work` beyond what it began with."""
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    return mx.get_peak_memory() - before


def batch_of(num_rows: int, capacity: int, make: Callable[[], Caches] = full_row) -> Caches:
    batch = make()
    append_rows(batch, 1, [make() for _ in range(num_rows - 1)], capacity)
    return batch


def test_a_row_joins_in_place_for_nothing_however_many_there_are() -> None:
    for num_rows in (2, 8, 31):
        batch, row = batch_of(num_rows, num_rows + 1), full_row()
        assert bytes_beyond(lambda: append_rows(batch, num_rows, [row], num_rows + 1)) <= ROW_LAYER + SLACK  # noqa: B023


@pytest.mark.parametrize("make", [full_row, windowed_row])
@pytest.mark.parametrize("num_rows", [1, 8, 31])
def test_a_batch_grows_by_its_rows_and_one_layer(num_rows: int, make: Callable[[], Caches]) -> None:
    batch, row = batch_of(num_rows, num_rows, make), make()
    capacity = rows_capacity(num_rows + 1)
    new_rows = (capacity - num_rows) * NUM_LAYERS * ROW_LAYER
    assert (
        bytes_beyond(lambda: append_rows(batch, num_rows, [row], capacity))
        <= new_rows + (capacity + 1) * ROW_LAYER + SLACK
    )


@pytest.mark.parametrize("make", [full_row, windowed_row])
def test_many_rows_join_for_one_layer(make: Callable[[], Caches]) -> None:
    """Their own caches go layer by layer, so 31 streams of one prompt never need twice their bytes."""
    batch, rows = make(), [make() for _ in range(30)]
    assert bytes_beyond(lambda: append_rows(batch, 1, rows, 31)) <= 2 * 31 * (ROW_LAYER + 2 * PAGE) + SLACK
    assert not any(live_arrays([cache for row in rows for cache in row if cache is not None]))


@pytest.mark.parametrize("num_rows", [3, 8, 31])
def test_a_longer_row_moves_the_others_one_layer_at_a_time(num_rows: int) -> None:
    batch, row = batch_of(num_rows, num_rows + 1), full_row(NUM_SLOTS + NUM_TOKENS)
    wider = (num_rows + 1) * NUM_LAYERS * ROW_LAYER
    assert (
        bytes_beyond(lambda: append_rows(batch, num_rows, [row], 0)) <= wider + (num_rows + 1) * 2 * ROW_LAYER + SLACK
    )


@pytest.mark.parametrize("make", [full_row, windowed_row])
@pytest.mark.parametrize("num_rows", [3, 8, 31])
def test_rows_leave_for_one_layer(num_rows: int, make: Callable[[], Caches]) -> None:
    batch = batch_of(num_rows, num_rows, make)
    for kept in (range(1, num_rows), range(num_rows // 3 + 1)):
        order = rows_in_place(num_rows, kept)
        assert bytes_beyond(lambda: keep_rows(batch, order)) <= num_rows * ROW_LAYER + SLACK  # noqa: B023
        num_rows = len(order)
    assert sum(array.nbytes for array in live_arrays(batch)) <= (num_rows + 1) * NUM_LAYERS * ROW_LAYER + SLACK


@pytest.mark.parametrize("num_tokens", [NUM_TOKENS, NUM_SLOTS])
def test_a_hole_is_filled_in_place(num_tokens: int) -> None:
    batch = batch_of(31, 31)
    for cache in batch:
        for _ in range(NUM_TOKENS, num_tokens):
            cache.update_and_fetch(*[mx.ones((31, HEADS, 1, WIDE))] * 2)
    mx.eval(live_arrays(batch))
    assert bytes_beyond(lambda: keep_rows(batch, rows_in_place(31, range(1, 31)))) <= 2 * ROW_LAYER + SLACK


def test_the_last_row_takes_its_bytes_and_leaves_the_batch_layer_by_layer() -> None:
    batch = batch_of(31, 31)
    assert bytes_beyond(lambda: take_row(batch, 30, is_last=True)) <= 2 * ROW_LAYER + SLACK


@pytest.mark.parametrize("make", [full_row, windowed_row])
def test_a_row_taken_out_does_not_make_updates_copy_the_batch(make: Callable[[], Caches]) -> None:
    batch = batch_of(8, 8, make)
    taken = take_row(batch, 3)
    new = mx.ones((8, HEADS, 1, WIDE))
    mx.eval(new)

    def update() -> None:
        for cache in batch:
            cache.update_and_fetch(new, new)
            mx.eval(live_arrays([cache]))

    assert bytes_beyond(update) <= ROW_LAYER + SLACK
    assert live_arrays(taken)


def test_room_is_given_back_one_layer_at_a_time() -> None:
    batch = batch_of(8, 31)
    before = mx.get_active_memory()
    assert bytes_beyond(lambda: give_back(batch)) <= 8 * ROW_LAYER + SLACK
    assert mx.get_active_memory() <= before - 23 * NUM_LAYERS * ROW_LAYER + SLACK


def test_full_buffers_grow_one_layer_at_a_time() -> None:
    batch = batch_of(8, 8)
    for cache in batch:
        cache.update_and_fetch(*[mx.ones((8, HEADS, 1, WIDE))] * 2)
    mx.eval(live_arrays(batch))
    grown = 8 * NUM_LAYERS * ROW_LAYER
    assert bytes_beyond(lambda: make_room(batch, 1)) <= grown + 2 * 8 * ROW_LAYER + SLACK


def test_layers_that_stand_at_the_same_move_one_array() -> None:
    batch = merge([alone("full", sequence, 5 + sequence) for sequence in range(3)])
    first, second = leaves(batch)
    for step in range(3):
        make_room(batch, 1)
        feed(batch, [0, 1, 2], [5 + step, 6 + step, 7 + step], 1)
        assert second.offset is first.offset
        assert first.offset.tolist() == [6 + step, 7 + step, 8 + step]
    keep_rows(batch, rows_in_place(3, [0, 2]))
    make_room(batch, 1)
    feed(batch, [0, 2], [8, 10], 1)
    assert second.offset is first.offset
    assert first.offset.tolist() == [9, 11]


def test_a_layer_that_is_cut_back_stands_where_it_was() -> None:
    batch = merge([alone("full", sequence, 5 + sequence) for sequence in range(2)])
    feed(batch, [0, 1], [5, 6], 2)
    for cache in leaves(batch):
        cache.trim(1)
        assert cache.offset.tolist() == [6, 7]
    feed(batch, [0, 1], [6, 7], 1)
    assert [cache.offset.tolist() for cache in leaves(batch)] == [[7, 8], [7, 8]]


def test_a_layer_that_is_not_used_is_not_cut_back() -> None:
    unused = KVRows(lib.KVCache())
    assert (Rollback([unused]).undo(3, 1), unused.offset.tolist()) == (0, [0])
