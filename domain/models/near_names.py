"""Names that resemble a name which is not there."""

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 3
MAX_CHARS = 200
"""The length from which a name is compared with nothing: the comparison takes time in the square of it."""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """The known names nearest to `name`, the nearest first. Case does not count, nor an organisation that one of the
    two lacks."""
    if len(name) > MAX_CHARS:
        return []
    by_spelling = {spelling: one for one in known for spelling in (_bare(one), one.lower())}
    found = get_close_matches(name.lower(), by_spelling, 2 * MOST) + get_close_matches(_bare(name), by_spelling, MOST)
    return list(dict.fromkeys(by_spelling[spelling] for spelling in found))[:MOST]


def _bare(name: str) -> str:
    return name.rpartition("/")[2].lower()
