"""What the tests make that stays to the end, and that no collector looks through: half a million objects once they are
collected, and as many again of the modules and caches that files of tests leave behind.

An engine freezes all there is when a model was loaded, and thaws it when one is unloaded (`adapters/mlx/engine`). The
tests' own objects would be looked through at every load and unload, up to a third of a second each time: more than most
tests take. So once they are frozen, freezing and thawing do nothing, and collections look at what came later. A test of
freezing itself asks for `really_freezing`.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_freeze, _unfreeze = gc.freeze, gc.unfreeze


def freeze_tests() -> None:
    """Once all tests are collected, and at the end of each file."""
    gc.collect()
    _freeze()
    gc.freeze = gc.unfreeze = _stay


@contextmanager
def really_freezing() -> Iterator[None]:
    """`gc.freeze` and `gc.unfreeze` do what they say until the block ends; then all is frozen that is there."""
    gc.freeze, gc.unfreeze = _freeze, _unfreeze
    try:
        yield
    finally:
        freeze_tests()  # what is frozen still is not looked through once more


def _stay() -> None:
    pass
