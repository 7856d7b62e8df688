"""Sizes in human-readable form: `16GiB`, `500MB`, `70%`, `0`. A share is resolved against a total only when asked."""

import re
from dataclasses import dataclass
from decimal import Decimal

from domain.errors import InvalidRequest

_UNITS = {
    "": 1, "b": 1,
    "k": 2**10, "kb": 10**3, "kib": 2**10,
    "m": 2**20, "mb": 10**6, "mib": 2**20,
    "g": 2**30, "gb": 10**9, "gib": 2**30,
    "t": 2**40, "tb": 10**12, "tib": 2**40,
    "p": 2**50, "pb": 10**15, "pib": 2**50,
}  # fmt: skip
_PATTERN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*|%)\s*")


@dataclass(frozen=True, slots=True)
class ByteSize:
    """Either `num_bytes`, or a `share` (0 to 1) of a total known later. Exactly one of them is set."""

    num_bytes: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str) -> "ByteSize":
        """Parses `16GiB`, `500MB`, `70%` or a plain number of bytes. Raises InvalidRequest with the accepted forms."""
        match = _PATTERN.fullmatch(text)
        if match:
            number, unit = Decimal(match[1]), match[2].lower()
            if unit == "%" and number <= 100:
                return cls(share=float(number / 100))
            if unit in _UNITS:
                return cls(num_bytes=int(number * _UNITS[unit]))
        raise InvalidRequest(f"{text!r} is not a size: write 16GiB, 500MB, 70% or a number of bytes")

    def resolve(self, total_bytes: int) -> int:
        """Returns the bytes. `total_bytes`: the total that a share refers to."""
        return self.num_bytes if self.num_bytes is not None else int((self.share or 0) * total_bytes)

    def __str__(self) -> str:
        return f"{self.share * 100:g}%" if self.share is not None else format_bytes(self.num_bytes or 0)


def format_bytes(num_bytes: int) -> str:
    """Returns a size in binary units with at least three significant digits: 1536 -> `1.5 KiB`."""
    value, units = float(num_bytes), ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    index = 0
    while abs(value) >= 1024 and index < len(units) - 1:
        value /= 1024
        index += 1
    if index == 0:
        return f"{num_bytes} B"
    whole = abs(value) >= 999.5  # three digits would be written as 1e+03
    return f"{value:.0f} {units[index]}" if whole else f"{value:.3g} {units[index]}"
