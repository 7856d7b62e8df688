"""MLX as the tests' process starts it: a faster BLAS of equal results, and a device thread that preempts no other."""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.patience import PATIENCE_S

_SOURCE = Path(__file__).with_name("plain_blas.c")
_FLAGS = ("-shared", "-fPIC", "-O3", "-march=native", "-ffp-contract=off")  # as the reference: no fused products


def load_plain_blas() -> bool:
    """Replaces the products of the reference BLAS that MLX brings, bit for bit the same in a fraction of the time, for
    the MLX import that follows, in this process only. Returns False where there is no C compiler to build it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if (sys.platform, platform.machine()) != ("linux", "x86_64") or compiler is None:
        return False
    with TemporaryDirectory(prefix="cairn-blas-") as folder:
        library = os.path.join(folder, "plain_blas.so")
        built = subprocess.run(
            [compiler, *_FLAGS, "-o", library, str(_SOURCE)], capture_output=True, timeout=PATIENCE_S
        )
        if built.returncode == 0:
            ctypes.CDLL(library, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        return built.returncode == 0


def start_device() -> None:
    """Starts MLX's thread for the operations of this thread, with batch priority. Call it before anything is computed.

    On a CPU MLX hands operations to that thread a few at a time. Woken for each it takes the processor from the thread
    that hands them over: with tiny models the switches took an eighth of the tests' processor time."""
    if sys.platform != "linux":
        return
    import mlx.core as mx

    with suppress(OSError):  # a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # which a thread that is started inherits
    mx.eval(mx.zeros(1) + 1)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
