"""The thread on which MLX computes what the tests' own thread asks for, started so that it preempts nobody.

On a CPU MLX hands operations to that thread a few at a time. Woken for each it takes the processor from who hands them
over, and soon has nothing to do: with tiny models the switches took an eighth of the tests' processor time.
"""

import os
import sys
from contextlib import suppress


def start_device() -> None:
    """Before the tests' thread computes anything, on that thread. It and all others stay as they are."""
    if sys.platform != "linux":
        return
    import mlx.core as mx

    with suppress(OSError):  # a sandbox may forbid it
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # which a thread that is started inherits
    mx.eval(mx.zeros(1) + 1)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
