"""The driver's calls leave alone what other threads record into graphs; over a library that only notes them."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from adapters.mlx.cuda_driver import RELAXED, CudaDriver

AT_FIRST = 0


class NotingLibrary:
    """libcuda.so.1, as far as it is looked at. `status`: of every call that is not about the thread."""

    def __init__(self, status: int = 0) -> None:
        self.mode = AT_FIRST
        self.modes: dict[str, int] = {}
        self._status = status

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:  # noqa: N802 - the driver's name
        held = mode._obj
        self.mode, held.value = held.value, self.mode
        return 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*_: object) -> int:
            self.modes[name] = self.mode
            return self._status if name == "cuMemHostAlloc" else 0

        return call


def test_a_call_is_made_in_the_relaxed_mode_and_leaves_the_threads_own() -> None:
    library = NotingLibrary()
    CudaDriver(library).call("cuMemHostAlloc", ctypes.c_size_t(1))
    assert library.modes["cuMemHostAlloc"] == RELAXED
    assert library.mode == AT_FIRST


def test_so_does_a_call_that_fails() -> None:
    library = NotingLibrary(status=2)
    with pytest.raises(RuntimeError, match="cuMemHostAlloc failed with CUDA error 2"):
        CudaDriver(library).call("cuMemHostAlloc", ctypes.c_size_t(1))
    assert library.mode == AT_FIRST
