"""Whether a network's code builds its graph, of a decode step or a chunk, without evaluating anything on the way.

Most do; some look at a number to decide how to go on. Those may not be built while a step is handed over
(`step_threads`). It is found by trial, on a stream that this thread cannot use: whatever is evaluated there raises.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlx.core as mx

from adapters.mlx.caches.layout import are_full_kv, new_caches
from adapters.mlx.caches.rows import merge
from adapters.mlx.probe import prefilled

_LENGTHS, _CHUNK = (3, 5), 4


def builds_lazily(network: Any, vocab_size: int | None) -> bool:
    """By a decode step of one row and one of two, and a chunk. False also for state other than full KV: an operation
    with several results must not make it (`step_threads`). For a network that passed the probe; compute thread only."""
    if not are_full_kv(new_caches(network)):
        return False
    rows = [prefilled(network, length, vocab_size)[0] for length in _LENGTHS]
    both = merge(rows)
    try:
        with mx.stream(_stream_of_nobody()):
            for caches, shape in ((rows[0], (1, 1)), (both, (len(rows), 1)), (rows[0], (1, _CHUNK))):
                network(mx.zeros(shape, mx.uint32), cache=caches)
    except Exception:
        return False
    return True


def _stream_of_nobody() -> mx.Stream:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_left_stream).result()


def _left_stream() -> mx.Stream:
    stream = mx.new_stream(mx.default_device())
    mx.clear_streams()
    return stream


__all__ = ("builds_lazily",)
