"""Who goes first: somebody waits for an interactive answer, a batch one takes what is left and is never forgotten."""

from enum import Enum


class Priority(Enum):
    """BATCH waits for INTERACTIVE, up to a stated number of turns (see `scheduling`)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


__all__ = ("Priority",)
