"""Many texts encoded side by side, by a few threads that exist for as long as that takes.

The library lets go of the interpreter for as long as it encodes a batch. Its own threads stay unused: nobody bounds
them, and they outlive the call. Few texts are encoded by the thread that asks.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TypeVar

T = TypeVar("T")

BATCH_CHARS = 2**16
"""What a thread takes at a time: some 15 milliseconds of encoding, beside which handing it over is nothing."""


def work_side_by_side(work: Callable[[list[str]], list[T]], texts: Sequence[str], num_threads: int) -> list[T]:
    """What `work` makes of each, in their order. `work`: from any thread. Raises what it raises."""
    batches = list(_batches(texts))
    num_threads = min(num_threads, len(batches))
    if num_threads < 2:
        return work(list(texts))
    with ThreadPoolExecutor(num_threads, thread_name_prefix="encoding") as threads:
        return list(chain.from_iterable(threads.map(work, batches)))


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_chars = 0
    for text in texts:
        batch.append(text)
        num_chars += len(text)
        if num_chars >= BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


__all__ = ("BATCH_CHARS", "work_side_by_side")
