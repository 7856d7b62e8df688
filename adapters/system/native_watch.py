"""The second wall: a thread of the C runtime that writes every thread's stack when no Python runs any more.

`faulthandler` keeps it. It needs no interpreter lock, so that it sees what a watch in Python cannot: native code that
holds the lock and does not return. It writes to the standard error stream of the process as it was at the start, in its
own plain form, past all logging. There is one such timer a process.
"""

import faulthandler
import os
from typing import TextIO


class NativeWatch:
    """A LastResort. `after_s`: how long no Python may run until it writes. `exits`: whether it ends the process then,
    with status 1, which faulthandler gives and nobody can choose."""

    def __init__(self, after_s: float, stderr: TextIO, *, exits: bool) -> None:
        self._after_s = after_s
        self._exits = exits
        self._file = os.fdopen(os.dup(stderr.fileno()), "w")

    def rearm(self) -> None:
        if not self._file.closed:
            faulthandler.dump_traceback_later(self._after_s, repeat=not self._exits, file=self._file, exit=self._exits)

    def disarm(self) -> None:
        if not self._file.closed:
            faulthandler.cancel_dump_traceback_later()
            self._file.close()


__all__ = ("NativeWatch",)
