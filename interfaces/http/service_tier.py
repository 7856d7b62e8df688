"""What dialects call a request's priority, both ways. There are two: what somebody waits for, and what may wait.

Tiers that clients pay for elsewhere (`priority`, `fast`, ...) are an ordinary request here; there are new ones every
year, so that an unknown one is no error.
"""

from domain.priority import Priority


def tier_priority(tier: str | None) -> Priority:
    """`flex` is OpenAI's name for what may wait, `batch` Anthropic's."""
    return Priority.BATCH if tier in ("flex", "batch") else Priority.INTERACTIVE


def openai_tier(priority: Priority) -> str:
    """The tier that a request was served in, which its key may have lowered."""
    return "flex" if priority is Priority.BATCH else "default"


def anthropic_tier(priority: Priority) -> str:
    """See `openai_tier`."""
    return "batch" if priority is Priority.BATCH else "standard"


__all__ = ("anthropic_tier", "openai_tier", "tier_priority")
