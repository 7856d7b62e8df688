"""Whose a request's documents are: the key's that it came with, and its tenant's.

Requests without a body name their tenant in a header: addresses end up in logs.
"""

from collections.abc import Mapping

from application.services.documents import Documents
from domain.document import Owner
from interfaces.http.visit import Visit

SALT_HEADER = "x-cairn-cache-salt"


def requested_salt(headers: Mapping[str, str], cache_salt: str | None = None) -> str:
    """`cache_salt`: the body's, which counts before the header; empty without either."""
    return headers.get(SALT_HEADER, "") if cache_salt is None else cache_salt


def owner_of(documents: Documents, visit: Visit, salt: str) -> Owner:
    """`salt`: the one requested."""
    return documents.owner(visit.client.tenant(salt), visit.client.name)


__all__ = ("SALT_HEADER", "owner_of", "requested_salt")
