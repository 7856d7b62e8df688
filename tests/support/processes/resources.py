"""Resources of a process that must not grow: threads and file descriptors."""

import os
import re
import threading
from typing import NamedTuple

GROWING = re.compile(r"asyncio_|uvloop_|cairn-.*-\d+$")
"""The names of threads of pools, lanes among them, that grow on demand up to bounds of their own."""


class Resources(NamedTuple):
    """`num_threads` leaves out what is GROWING."""

    num_threads: int
    num_descriptors: int

    def is_within(self, other: "Resources") -> bool:
        return self.num_threads <= other.num_threads and self.num_descriptors <= other.num_descriptors


def resources() -> Resources:
    """Returns the resources of this process."""
    threads = [thread for thread in threading.enumerate() if not GROWING.match(thread.name)]
    return Resources(len(threads), len(os.listdir("/dev/fd")))
