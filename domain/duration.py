"""Durations in human-readable form: `30d`, `12h`, `90m`, `45s`."""

import re
from dataclasses import dataclass

from domain.errors import InvalidRequest

_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_PATTERN = re.compile(r"\s*([0-9]{1,9})\s*([dhms])\s*")


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in whole seconds."""

    num_seconds: int

    @classmethod
    def parse(cls, text: str) -> "Duration":
        """Parses a duration. Raises InvalidRequest with the accepted forms."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise InvalidRequest(f"{text!r} is not a duration: write 30d, 12h, 90m or 45s")
        return cls(int(match[1]) * _UNITS[match[2]])

    def __str__(self) -> str:
        unit = next(unit for unit, seconds in _UNITS.items() if self.num_seconds % seconds == 0)
        return f"{self.num_seconds // _UNITS[unit]}{unit}"
