"""Page-locked host memory that a kernel reads where it lies: what is decoded into it crosses without another copy.

It is ordinary memory to whoever writes it, and goes with the last view of it. Its address is the device's own, as that
of the staging memory is (`cuda_link`). Beyond the bytes that may be locked, or where the driver locks none, memory is
ordinary: `holds` says so, and what lies there is staged.
"""

import ctypes
import logging
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from adapters.mlx.cuda_driver import MAPPED, PORTABLE, CudaDriver, Driver

MAX_LOCKED_BYTES = 1 << 30
"""A few reads of a large model (`fetch.READS_AHEAD`)."""

MAX_FAILURES = 4
"""In a row: a driver may refuse for a moment only, while something else goes on."""

_PAGE_BYTES = 4096

_logger = logging.getLogger("cairn.mlx")


class LockedMemory:
    """Any thread. Asks for the driver at the first allocation."""

    def __init__(self, find_driver: Callable[[], Driver] = CudaDriver, max_bytes: int = MAX_LOCKED_BYTES) -> None:
        self._find_driver = find_driver
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._driver: Driver | None = None
        self._num_failures = 0
        self._coming_bytes = 0  # being allocated
        self._sizes: dict[int, int] = {}  # by address; changed without the lock where the last view of one goes

    @property
    def locked_bytes(self) -> int:
        return sum(list(self._sizes.values())) + self._coming_bytes

    def allocate(self, size_bytes: int) -> NDArray[np.uint8]:
        """uint8, not initialised: so many or a few more, up to a whole page. A view of no other array."""
        capacity = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
        with self._lock:
            if self.locked_bytes + capacity > self._max_bytes:
                return np.empty(size_bytes, np.uint8)
            self._coming_bytes += capacity
        # Outside the lock: locking pages takes as long as touching them.
        try:
            found = self._locked(capacity)
        except (OSError, RuntimeError, AttributeError) as error:
            self._num_failures += 1
            if self._num_failures == MAX_FAILURES:  # not asked for each plane for ever
                self._max_bytes = sum(list(self._sizes.values()))
                _logger.warning("what is read from the store crosses to the device slower: %s", error)
            return np.empty(size_bytes, np.uint8)
        else:
            self._num_failures = 0
            return found
        finally:
            with self._lock:
                self._coming_bytes -= capacity

    def holds(self, address: int, size_bytes: int) -> bool:
        """Whether a kernel may read all of these bytes."""
        ranges = list(self._sizes.items())
        return any(start <= address and address + size_bytes <= start + size for start, size in ranges)

    def _locked(self, size_bytes: int) -> NDArray[np.uint8]:
        driver = self._driver = self._driver or self._find_driver()
        found = ctypes.c_void_p()
        driver.call("cuMemHostAlloc", ctypes.byref(found), ctypes.c_size_t(size_bytes), PORTABLE | MAPPED)
        address = found.value or 0
        mapped: Any = (ctypes.c_uint8 * size_bytes).from_address(address)
        self._sizes[address] = size_bytes
        finalize(mapped, self._free, driver, address).atexit = False  # the process gives all back then
        return np.frombuffer(mapped, np.uint8)

    def _free(self, driver: Driver, address: int) -> None:
        del self._sizes[address]
        try:
            driver.call("cuMemFreeHost", ctypes.c_void_p(address))
        except RuntimeError as error:
            _logger.warning("page-locked memory could not be given back: %s", error)


LOCKED = LockedMemory()
"""The process's own: who decodes for the device allocates here, and the link reads it."""


__all__ = ("LOCKED", "MAX_FAILURES", "MAX_LOCKED_BYTES", "LockedMemory")
