"""Which namespaces somebody means: all of them, those of a model, those of a tenant."""

from dataclasses import dataclass

from domain.prefix.fingerprint import salt_digest, shares_tenant, tenant_salt
from domain.prefix.record import NamespaceInfo


@dataclass(frozen=True, slots=True)
class NamespaceChoice:
    """None means any. `model`: its name, or the first digits of a namespace's hash. `salt`: as `salt_digest` has it;
    empty for those that were stored without a salt."""

    model: str | None = None
    salt: str | None = None

    @classmethod
    def of(cls, model: str | None, requested_salt: str | None, configured_salt: str) -> "NamespaceChoice":
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


EVERYTHING = NamespaceChoice()


def _begins(info: NamespaceInfo, digits: str) -> bool:
    return bool(digits) and info.namespace.hex().startswith(digits)
