"""Frames gathered however small they are: what a store does otherwise for large ones only."""

from adapters.lmdb.gathering import Gathering

GATHERS_ALL = Gathering(lambda size_bytes: memoryview(bytearray(size_bytes)), worth_bytes=1)

__all__ = ("GATHERS_ALL", "Gathering")
