"""Numbers in files of unknown origin.

JSON as Python reads it has NaN, infinities and integers of thousands of digits, which raise where they are converted
or shown.
"""

import sys
from typing import TypeGuard

MAX_COUNT = 2**63 - 1


def is_count(value: object) -> TypeGuard[int]:
    """A number of things: whole, not negative, in 63 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def is_number(value: object) -> TypeGuard[int | float]:
    """Finite, and no larger than a float can be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
