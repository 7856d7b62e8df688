"""Priorities of requests: interactive ones are admitted first, batch ones after a bounded number of them."""

from enum import Enum

from domain.errors import require


class Priority(Enum):
    """BATCH waits for INTERACTIVE, up to a stated number of turns (see `scheduling`)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


def named_priority(name: str) -> Priority:
    """Raises InvalidRequest."""
    names = [priority.value for priority in Priority]
    require(name in names, "priority", f"must be {' or '.join(names)}")
    return Priority(name)
