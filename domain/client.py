"""Clients: what the owner of a key may do and has used, which tenant its prompts belong to, and the ring of all keys.

    bucket  requests_per_minute tokens; one comes back every 60 s / requests_per_minute
    places  max_concurrent; taken when generations begin, given back when their request is over

Invariants: with different key salts no two requests share a prefix, whichever `cache_salt` either sends: a tenant's
salt has a mark in front that no client can send (what begins with it is hashed like a tenant's own). Finding a key
compares with every digest, in constant time each, so that nothing can be learnt from how long it takes. Keys are
random, so a plain hash of one cannot be turned back. Nothing here is thread-safe; times are monotonic nanoseconds."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from domain.errors import InvalidKeys, InvalidRequest, LimitReached, NotAllowed
from domain.printable import printable
from domain.priority import Priority
from domain.request.request import GenerationRequest

DEFAULT_NAME = "default"
"""The name of the key in the server's settings."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MARK = "cairn key\0"
_MAX_REQUESTS_PER_MINUTE = 1_000_000
_MAX_CONCURRENT = 65_536
_MINUTE_NS = 60_000_000_000
_BUSY_RETRY_S = 1
"""It is not known when a generation ends."""


@dataclass(frozen=True, slots=True)
class Client:
    """The owner of a key and its limits; None for no limit. `name`: the key's, never the key; empty where there are no
    keys. `salt`: empty shares prefixes with all other clients without one. `models`: names that its requests may use.
    Admins see and clear what belongs to all clients. `priority`: the highest that its requests can have."""

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
            raise NotAllowed(f"the key '{self.name}' may not use the model '{printable(model)}'", param="model")

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


OPEN_CLIENT = Client(is_admin=True)
"""The client of a server without keys."""

ANONYMOUS = Client(models=frozenset())
"""A client without a key on a route that needs none."""


class Allowance(NamedTuple):
    """The limit of requests, those left now, and the time until all of them are back."""

    limit: int
    remaining: int
    reset_ns: int


class ClientMeter:
    """The use that a client has made of its limits. `client` is replaced when its key is read again, and the use stays.

    The bucket is kept as the time at which it is full again: each token is one interval of it. A request that is
    refused takes nothing.
    """

    __slots__ = ("_full_at_ns", "_num_running", "client")

    def __init__(self, client: Client) -> None:
        self.client = client
        self._full_at_ns = 0
        self._num_running = 0

    def charge(self, num_requests: int, now_ns: int, *, num_paid: int = 0) -> None:
        """Take this many tokens of the bucket, less those taken for the same request already. Raises LimitReached, or
        InvalidRequest for more than the bucket ever holds."""
        limit = self.client.requests_per_minute
        if limit is None or num_requests <= num_paid:
            return
        if num_requests > limit:
            raise InvalidRequest(f"the key '{self.client.name}' may request {limit} generations a minute in all")
        interval_ns = _MINUTE_NS // limit
        full_at_ns = max(self._full_at_ns, now_ns) + (num_requests - num_paid) * interval_ns
        if (wait_ns := full_at_ns - now_ns - limit * interval_ns) > 0:
            wait_s = -(-(wait_ns + num_paid * interval_ns) // 1_000_000_000)  # asking again is paid for again
            raise LimitReached(
                f"the key '{self.client.name}' has used its {limit} requests a minute; try again in {wait_s}s",
                retry_after_s=wait_s,
            )
        self._full_at_ns = full_at_ns

    def enter(self, num_generations: int, *, num_held: int = 0) -> None:
        """Take this many places, less those held for the same request already, until `leave`. Raises as `charge`
        does."""
        limit = self.client.max_concurrent
        num_more = num_generations - num_held
        if num_more <= 0:
            return
        if limit is not None and num_generations > limit:
            raise InvalidRequest(f"the key '{self.client.name}' may have {limit} generations running at once")
        if limit is not None and self._num_running + num_more > limit:
            raise LimitReached(
                f"the key '{self.client.name}' has {self._num_running} generations running, of {limit} that it may;"
                f" try again in {_BUSY_RETRY_S}s",
                retry_after_s=_BUSY_RETRY_S,
            )
        self._num_running += num_more

    def leave(self, num_generations: int) -> None:
        self._num_running -= num_generations

    def allowance(self, now_ns: int) -> Allowance | None:
        """None for a client without a limit of requests."""
        limit = self.client.requests_per_minute
        if limit is None:
            return None
        interval_ns = _MINUTE_NS // limit
        used_ns = max(0, self._full_at_ns - now_ns)
        return Allowance(limit, max(0, (limit * interval_ns - used_ns) // interval_ns), used_ns)


def key_digest(key: bytes) -> bytes:
    return sha256(key).digest()


@dataclass(frozen=True, slots=True)
class Key:
    """A key by its digest (`key_digest`), with its client."""

    digest: bytes
    client: Client


def own_keys(api_key: str | None) -> list[Key]:
    """The key in the server's settings, if there is one: an admin's, without limits."""
    return [] if api_key is None else [Key(key_digest(api_key.encode()), Client(DEFAULT_NAME, is_admin=True))]


class KeyRing:
    """All keys of a server. `is_open`: no key is needed and none is looked at. Not thread-safe."""

    def __init__(self, keys: Sequence[Key], *, is_open: bool = False) -> None:
        self._open_to = [ClientMeter(OPEN_CLIENT)] if is_open else []
        self._keys: list[tuple[bytes, ClientMeter]] = []
        self.replace(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def replace(self, keys: Sequence[Key]) -> None:
        """Use these keys from now on. The use of each client is kept by its name. Raises InvalidKeys and keeps what was
        there: for two keys of one name, or one key of two names."""
        _check(keys)
        meters = {meter.client.name: meter for _, meter in self._keys}
        found: list[tuple[bytes, ClientMeter]] = []
        for key in keys:
            meter = meters.get(key.client.name) or ClientMeter(key.client)
            meter.client = key.client
            found.append((key.digest, meter))
        self._keys = found

    def find(self, offered: Iterable[bytes]) -> list[ClientMeter]:
        """The clients of these keys: none, one, or several where they belong to different ones."""
        if self._open_to:
            return self._open_to
        digests = [key_digest(key) for key in offered]
        return [meter for digest, meter in self._keys if any([compare_digest(digest, sent) for sent in digests])]


def _check(keys: Sequence[Key]) -> None:
    names: set[str] = set()
    digests: set[bytes] = set()
    for key in keys:
        if key.client.name in names or key.digest in digests:
            raise InvalidKeys(f"the key '{key.client.name}' has the name or the value of another one")
        names.add(key.client.name)
        digests.add(key.digest)
