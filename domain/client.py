"""Who asks: what the owner of a key may do, and which tenant its prompts belong to.

Invariant: with different key salts no two requests share a prefix, whatever `cache_salt` either sends. A tenant's
salt has a mark in front that no client can send: what begins with it is hashed like a tenant's own.
"""

import json
import re
from dataclasses import dataclass, replace
from hashlib import sha256

from domain.errors import InvalidRequest, NotAllowed
from domain.priority import Priority
from domain.request import GenerationRequest
from domain.shown import shown

DEFAULT_NAME = "default"
"""Of the key in the server's settings."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MARK = "cairn key\0"
_MAX_REQUESTS_PER_MINUTE = 1_000_000
_MAX_CONCURRENT = 65_536


@dataclass(frozen=True, slots=True)
class Client:
    """`name`: the key's, never the key; empty where there are no keys. `salt`: empty shares with all who have none.
    `models`: names that its requests may use. None: all models, no limit. Admins see and clear what is everybody's.
    `priority`: the highest that its requests have, whatever they ask for."""

    name: str = ""
    salt: str = ""
    is_admin: bool = False
    models: frozenset[str] | None = None
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    priority: Priority = Priority.INTERACTIVE

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise InvalidRequest("a key's name must be 1 to 64 letters, digits, - or _", param="name")
        for name, most in (("requests_per_minute", _MAX_REQUESTS_PER_MINUTE), ("max_concurrent", _MAX_CONCURRENT)):
            value: int | None = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise InvalidRequest(f"{name} must be in 1..{most}", param=name)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Raises NotAllowed, whether or not there is such a model."""
        if not self.may_use(model):
            raise NotAllowed(f"the key '{self.name}' may not use the model '{shown(model)}'", param="model")

    def own(self, request: GenerationRequest) -> GenerationRequest:
        """The request as this client's. Raises NotAllowed."""
        self.check_model(request.model)
        salt, priority = self.tenant(request.cache_salt), self.priority
        if priority is Priority.INTERACTIVE:
            priority = request.priority
        return replace(request, cache_salt=salt, client=self.name, priority=priority)

    def tenant(self, cache_salt: str) -> str:
        """The key's salt and a request's `cache_salt` as one; other pairs give other salts."""
        if not self.salt and not cache_salt.startswith(_MARK):
            return cache_salt
        return _MARK + sha256(json.dumps([self.salt, cache_salt]).encode()).hexdigest()


ANYBODY = Client(is_admin=True)
"""Whoever asks a server without keys."""

NOBODY = Client(models=frozenset())
"""Who shows no key where none is needed."""

__all__ = ("ANYBODY", "DEFAULT_NAME", "NOBODY", "Client")
