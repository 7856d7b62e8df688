"""Ctrl-C while something runs on the event loop: it is cancelled at once.

`asyncio.Runner` handles SIGINT in Python code, which a loop that is just going to sleep runs when something else wakes
it up: with a model that computes for minutes, minutes later. A handler of the loop's own wakes it up.
"""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def unless_interrupted(work: Coroutine[Any, Any, object]) -> bool:
    """Run `work` to its end, or cancel it on SIGINT; False then. Raises what `work` raises. Main thread only."""
    worker = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, worker.cancel)
    try:
        await asyncio.wait({worker})
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        worker.cancel()  # no effect once it has ended
    if worker.cancelled():
        return False
    worker.result()
    return True
