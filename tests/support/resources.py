"""What a process holds that must not grow: threads and file descriptors."""

import os
import threading
from typing import NamedTuple

GROWING = ("asyncio_", "uvloop_", "cairn-text", "cairn-long-text", "cairn-model folder")


class Resources(NamedTuple):
    """`num_threads` leaves out the pools that grow on demand up to bounds of their own."""

    num_threads: int
    num_descriptors: int

    def is_within(self, other: "Resources") -> bool:
        return self.num_threads <= other.num_threads and self.num_descriptors <= other.num_descriptors


def resources() -> Resources:
    """Of this process, now."""
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith(GROWING)]
    return Resources(len(threads), len(os.listdir("/dev/fd")))


__all__ = ("Resources", "resources")
