"""Fingerprints: everything that a stored state depends on besides its tokens, reduced to the root of its chains.

Names do not enter, content does: two models under one name never share a root, and one model under two names does.
A NamespaceFilter selects namespaces by model and tenant, for listing and clearing.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

from domain.models.model_card import ModelDescription
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import Namespace, NamespaceInfo

CHAIN_VERSION = 1
"""The version of chains, incremented when the meaning of a chain, block or snapshot changes; older records are then
misses."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything a captured state depends on besides the tokens.

    `weights`: digest of weights, config and quantisation. `adapter`: of the adapter laid over them; empty for none.
    `layout`: StateLayout.describe(). `dtype`: of the cached state. `runtime`: what computes it, to the minor version,
    and in an exact grid (only states bit-identical to recomputing) also what rounds: another BLAS or device gives other
    bits, which other grids do not depend on. `salt`: the tenant's; it enters and is shown as a digest only.
    """

    weights: bytes
    layout: str
    dtype: str
    grid: BlockGrid
    runtime: str = ""
    salt: str = ""
    adapter: bytes = b""

    @classmethod
    def of(cls, model: ModelDescription, grid: BlockGrid, salt: str = "") -> "Fingerprint":
        """The fingerprint of a loaded model under these settings."""
        return cls(
            weights=model.weights_digest,
            layout=model.layout.describe(),
            dtype=model.dtype,
            grid=grid,
            runtime="; ".join(filter(None, (model.runtime, model.arithmetic if grid.is_exact else ""))),
            salt=salt,
            adapter=model.adapter_digest,
        )

    @property
    def salt_digest(self) -> str:
        """The digest of the salt in hex; empty without a salt."""
        return salt_digest(self.salt)

    def canonical_json(self) -> str:
        """Returns canonical JSON: sorted keys, no spaces, ASCII. Equal fingerprints give equal text."""
        content: dict[str, object] = {
            "adapter": self.adapter.hex(),
            "block_size": self.grid.block_size,
            "dtype": self.dtype,
            "exact": self.grid.is_exact,
            "format": CHAIN_VERSION,
            "grid": self.grid.step,
            "layout": self.layout,
            "runtime": self.runtime,
            "salt": self.salt_digest,
            "weights": self.weights.hex(),
        }
        if self.grid.chunking.most_pairs:  # parts of a step round otherwise
            content["pairs"] = self.grid.chunking.most_pairs
        return json.dumps(content, sort_keys=True, separators=(",", ":"))

    def namespace(self) -> Namespace:
        """The root of every chain computed under this fingerprint."""
        return namespace_of(self.canonical_json())


def namespace_of(canonical_json: str) -> Namespace:
    """Returns the namespace of a fingerprint given as canonical JSON."""
    return Namespace(sha256(b"cairn chain\0" + canonical_json.encode()).digest())


def salt_digest(salt: str) -> str:
    """Returns the digest of a tenant's salt as a fingerprint shows it: hex, empty without a salt."""
    return sha256(b"cairn salt\0" + salt.encode()).hexdigest() if salt else ""


def tenant_salt(configured: str, requested: str) -> str:
    """Returns the server's salt and a request's as one: other pairs give other salts, none longer than a digest. Empty
    when both are empty: clients without a salt share one cache.
    """
    if not configured and not requested:
        return ""
    return sha256(b"cairn tenant\0" + json.dumps([configured, requested]).encode()).hexdigest()


def tenant_of(fingerprint_json: str) -> object:
    """Returns the digest of the salt in a stored fingerprint; None where that cannot be read."""
    try:
        return cast("dict[str, object]", json.loads(fingerprint_json)).get("salt")
    except (ValueError, AttributeError):
        return None


def shares_tenant(fingerprint_json: str, salt_digest: object) -> bool:
    """Returns whether a stored namespace belongs to this tenant; no tenant may learn what others have stored."""
    return salt_digest is not None and tenant_of(fingerprint_json) == salt_digest


@dataclass(frozen=True, slots=True)
class NamespaceFilter:
    """None means any. `model`: its name, or the first digits of a namespace's hash. `salt`: as `salt_digest` has it;
    empty for those that were stored without a salt."""

    model: str | None = None
    salt: str | None = None

    @classmethod
    def of(cls, model: str | None, requested_salt: str | None, configured_salt: str) -> "NamespaceFilter":
        """`requested_salt`: the `cache_salt` of requests; `configured_salt`: the server's own."""
        if requested_salt is None:
            return cls(model)
        return cls(model, salt_digest(tenant_salt(configured_salt, requested_salt)))

    @property
    def is_everything(self) -> bool:
        return self.model is None and self.salt is None

    def includes(self, info: NamespaceInfo) -> bool:
        is_model = self.model is None or info.model == self.model or _begins(info, self.model)
        return is_model and (self.salt is None or shares_tenant(info.fingerprint, self.salt))


EVERYTHING = NamespaceFilter()


def _begins(info: NamespaceInfo, digits: str) -> bool:
    return bool(digits) and info.namespace.hex().startswith(digits)
