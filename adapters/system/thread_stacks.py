"""The stacks of this process's threads, in the form of Python's tracebacks."""

import sys
import threading
import traceback
from collections.abc import Collection, Iterator
from types import FrameType

MAX_FRAMES = 24
"""The bound on frames of one thread; the innermost are kept."""

MAX_THREADS = 32


class PythonStacks:
    """A ThreadStacks reader. `prefixes`: prefixes of the names of threads to report, the most important first; the
    calling thread is left out. `idle_in`: qualified names of functions in which a thread waits for work."""

    def __init__(self, prefixes: Collection[str], idle_in: Collection[str] = ()) -> None:
        self._prefixes = tuple(prefixes)
        self._idle_in = frozenset(idle_in)

    def read(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented, for exactly this
        others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
        threads = [thread for thread in others if self._rank(thread.name) < len(self._prefixes)]
        threads.sort(key=lambda thread: (self._rank(thread.name), thread.name))
        return "\n".join(
            line
            for thread in threads[:MAX_THREADS]
            if (frame := frames.get(thread.ident or 0)) is not None
            for line in self._lines(thread.name, frame)
        )

    def _rank(self, name: str) -> int:
        ranks = (rank for rank, prefix in enumerate(self._prefixes) if name.startswith(prefix))
        return next(ranks, len(self._prefixes))

    def _lines(self, name: str, frame: FrameType) -> Iterator[str]:
        found = [one for one, _ in traceback.walk_stack(frame)]
        if any(one.f_code.co_qualname in self._idle_in for one in found):
            return
        yield f"thread {name}:"
        for one in reversed(found[:MAX_FRAMES]):
            yield f"  {one.f_code.co_filename}:{one.f_lineno} in {one.f_code.co_qualname}"
