"""The `x-cairn-cache` response header: what each choice's prompt reused, or that it is still queued."""

from collections.abc import Sequence

from domain.explanation import Explanation

CACHE_HEADER = "x-cairn-cache"
PENDING = "pending"
MAX_SHOWN = 16
"""Choices in the header; proxies refuse headers of many kilobytes."""


def cache_headers(explanations: Sequence[Explanation | None]) -> dict[str, str]:
    """One entry a choice, by index; None for one that was not admitted yet."""
    shown = [told.header() if told is not None else PENDING for told in explanations[:MAX_SHOWN]]
    if len(explanations) > MAX_SHOWN:
        shown.append(f"more={len(explanations) - MAX_SHOWN}")
    return {CACHE_HEADER: ", ".join(shown)}


__all__ = ("CACHE_HEADER", "MAX_SHOWN", "PENDING", "cache_headers")
