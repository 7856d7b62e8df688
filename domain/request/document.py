"""Documents: small texts that outlive the request that made them, each with an owner (a stored response, a tool call).

A document cannot be found by another owner: the owner is part of the key, and no key can be made without one.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

from domain.prefix.fingerprint import salt_digest, tenant_salt

DocumentId: TypeAlias = bytes
"""The digest of a document's key: 32 bytes."""


@dataclass(frozen=True, slots=True)
class Owner:
    """`tenant`: what `salt_digest` makes of a tenant's salts. `key_name`: of the API key that was used, empty where
    there is one for all or none."""

    tenant: str = ""
    key_name: str = ""

    @classmethod
    def of(cls, configured_salt: str, requested_salt: str, key_name: str = "") -> "Owner":
        """`configured_salt`: the server's own; `requested_salt`: a request's `cache_salt`."""
        return cls(salt_digest(tenant_salt(configured_salt, requested_salt)), key_name)


@dataclass(frozen=True, slots=True)
class DocumentKey:
    """A key of a document. `kind` separates names from different sources: `response`, `output_item`, `tool_call`."""

    owner: Owner
    kind: str
    name: str

    @property
    def id(self) -> DocumentId:
        """Returns the digest of the key; distinct for distinct keys, because every part is hashed with its length."""
        digest = sha256(b"cairn document\0")
        for part in (self.owner.tenant, self.owner.key_name, self.kind, self.name):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Document:
    """`model`: the one that wrote it, for clearing by model. `began_ns`: Unix time at which its request arrived: from
    then on it ages, and a later clear covers it. `is_fleeting`: kept in memory only, never in a file."""

    key: DocumentKey
    body: bytes
    model: str
    began_ns: int
    is_fleeting: bool = False
