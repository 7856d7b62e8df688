"""How a file grows that LMDB writes in one call: a thread of its own looks at its size, and tells."""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager

from application.ports.block_store import Advance

LOOK_EVERY_S = 0.2


@contextmanager
def growth_told(handle: int, advance: Advance) -> Generator[None]:
    """Tell of the file behind `handle` while the block runs, and of the rest, be it nothing, when it has ended well, on
    the caller's thread."""
    has_ended = threading.Event()
    told_bytes = 0

    def tell() -> None:
        nonlocal told_bytes
        size_bytes = os.fstat(handle).st_size
        more, told_bytes = size_bytes - told_bytes, size_bytes
        advance(more)

    def look() -> None:
        while not has_ended.wait(LOOK_EVERY_S):
            tell()

    thread = threading.Thread(target=look, name="cairn-file-growth", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
    tell()


__all__ = ("growth_told",)
