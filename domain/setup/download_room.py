"""The room for a model that is to be downloaded: on the disk, and in the memory of a server."""

from domain.byte_size import format_bytes
from domain.ids import ModelId

MIN_FREE_BYTES = 1 << 30
"""The space that a download leaves free."""


def disk_problem(id: ModelId, missing_bytes: int, free_bytes: int, cache: str) -> str:
    """The reason why the disk of the hub's cache has no room for the missing bytes, and what to do; empty if it has."""
    if not missing_bytes or missing_bytes + MIN_FREE_BYTES <= free_bytes:
        return ""
    room = f"{format_bytes(free_bytes)} are free in {cache}, and {format_bytes(MIN_FREE_BYTES)} stay free"
    missing = format_bytes(missing_bytes)
    return f"{id}: {missing} are missing, but {room}: free some, or name another place in HF_HUB_CACHE"


def memory_problem(weight_bytes: int, limit_bytes: int | None) -> str:
    """The sizes of weights that exceed the memory of a server; empty if they fit. `limit_bytes`: None for no limit."""
    if limit_bytes is None or weight_bytes <= limit_bytes:
        return ""
    weights, limit, excess = map(format_bytes, (weight_bytes, limit_bytes, weight_bytes - limit_bytes))
    return f"its weights take {weights}, and a server here may hold {limit}: {excess} too much"
