"""How many Python functions a piece of work calls: the same on a busy machine as on a quiet one."""

import gc
import sys
from collections.abc import Callable
from types import FrameType


def num_calls(work: Callable[[], object]) -> int:
    """On this thread. Not what the collector calls, which comes when it likes."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return count
