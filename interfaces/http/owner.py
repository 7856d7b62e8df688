"""Whose a request's documents are. Requests without a body name their tenant in a header: addresses end up in logs."""

from collections.abc import Mapping

SALT_HEADER = "x-cairn-cache-salt"


def requested_salt(headers: Mapping[str, str], cache_salt: str | None = None) -> str:
    """`cache_salt`: the body's, which counts before the header; empty without either."""
    return headers.get(SALT_HEADER, "") if cache_salt is None else cache_salt


__all__ = ("SALT_HEADER", "requested_salt")
