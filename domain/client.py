"""The clients of a server: their permissions, limits, use and tenants, and the ring that finds each by its key.

    bucket  requests_per_minute tokens; one comes back every 60 s / requests_per_minute
    places  max_concurrent; taken when generations and encodings begin, released when their request ends

Invariants: with different key salts no two requests share a prefix, whichever `cache_salt` either sends: a tenant's
salt has a mark in front that no client can send (what begins with it is hashed like a tenant's own). Finding a key
compares with every digest, in constant time each, so that the time it takes reveals nothing about the keys. Keys are
random, so a plain hash of one cannot be turned back. Nothing here is thread-safe; times are monotonic nanoseconds."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import compare_digest

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
"""The proposed wait for a place; the end of a running generation is not known."""


@dataclass(frozen=True, slots=True)
class Client:
    """The owner of a key and its limits, with the fields of the key file; None for no limit.

    `name`: the key's, never the key; empty where there are no keys. `sha256`: the key's `key_digest`; empty for a
    client without a key. `salt`: empty shares prefixes with all other clients without one. `models`: names that its
    requests may use. `priority`: the highest that its requests can have. `admin`: it may see and clear what belongs to
    all clients. `mcp`: names of the tool servers that it may use; None for none, or for all as an admin.
    """

    name: str = ""
    sha256: str = ""
    salt: str = ""
    requests_per_minute: int | None = None
    max_concurrent: int | None = None
    models: frozenset[str] | None = None
    priority: Priority = Priority.INTERACTIVE
    admin: bool = False
    mcp: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise InvalidRequest("a key's name must have 1 to 64 letters, digits, - or _", param="name")
        for name, most in (("requests_per_minute", _MAX_REQUESTS_PER_MINUTE), ("max_concurrent", _MAX_CONCURRENT)):
            value: int | None = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise InvalidRequest(f"{name} must be in 1..{most}", param=name)

    def may_use(self, model: str) -> bool:
        return self.models is None or model in self.models

    def check_model(self, model: str) -> None:
        """Raises NotAllowed if the key may not use the model, whether or not the model exists."""
        if not self.may_use(model):
            raise NotAllowed(f"the key '{self.name}' may not use the model '{printable(model)}'", param="model")

    def may_use_tools_of(self, server: str) -> bool:
        return self.admin if self.mcp is None else server in self.mcp

    def check_whole(self) -> None:
        """Raises NotAllowed for a key that is limited to some models or tool servers: it may not change what decides
        limits."""
        for what, limit in (("models", self.models), ("tool servers", self.mcp)):
            if limit is not None:
                raise NotAllowed(f"the key '{self.name}' is limited to some {what} and may not change settings or keys")

    def check_tools_of(self, server: str) -> None:
        """Raises NotAllowed if the key may not use the tool server, whether or not it exists."""
        if not self.may_use_tools_of(server):
            raise NotAllowed(f"the key '{self.name}' may not use the tool server '{printable(server)}'", param="server")

    def own(self, request: GenerationRequest) -> GenerationRequest:
        """Returns the request with the client's name, tenant and priority. Raises NotAllowed."""
        self.check_model(request.model)
        salt, priority = self.tenant(request.cache_salt), self.priority
        if priority is Priority.INTERACTIVE:
            priority = request.priority
        return replace(request, cache_salt=salt, client=self.name, priority=priority)

    def tenant(self, cache_salt: str) -> str:
        """Returns one salt for the key's salt and a request's `cache_salt`; other pairs give other salts."""
        if not self.salt and not cache_salt.startswith(_MARK):
            return cache_salt
        return _MARK + sha256(json.dumps([self.salt, cache_salt]).encode()).hexdigest()


OPEN_CLIENT = Client(admin=True)
"""The client of a server without keys."""

ANONYMOUS = Client(models=frozenset())
"""A client without a key on a route that needs none."""


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
            raise InvalidRequest(
                f"the key '{self.client.name}' may request {limit} generations a minute; send fewer in one request"
            )
        interval_ns = _MINUTE_NS // limit
        full_at_ns = max(self._full_at_ns, now_ns) + (num_requests - num_paid) * interval_ns
        if (wait_ns := full_at_ns - now_ns - limit * interval_ns) > 0:
            wait_s = -(-(wait_ns + num_paid * interval_ns) // 1_000_000_000)  # asking again is paid for again
            raise LimitReached(
                f"the key '{self.client.name}' has used its {limit} requests a minute; try again in {wait_s}s",
                retry_after_s=wait_s,
            )
        self._full_at_ns = full_at_ns

    def enter(self, num_generations: int, *, num_held: int = 0) -> int:
        """Take this many places, less those held for the same request already, and return how many it holds until
        `leave`. Raises as `charge` does."""
        limit = self.client.max_concurrent
        num_more = num_generations - num_held
        if num_more <= 0:
            return num_held
        if limit is not None and num_generations > limit:
            raise InvalidRequest(
                f"the key '{self.client.name}' may run at most {limit} generations at once; send fewer in one request"
            )
        if limit is not None and self._num_running + num_more > limit:
            raise LimitReached(
                f"the key '{self.client.name}' already has {self._num_running} generations running, of at most {limit};"
                f" try again in {_BUSY_RETRY_S}s",
                retry_after_s=_BUSY_RETRY_S,
            )
        self._num_running += num_more
        return num_generations

    def leave(self, num_generations: int) -> None:
        self._num_running -= num_generations

    def allowance(self, now_ns: int) -> dict[str, str]:
        """Returns the limit of requests, those left now, and the time until all of them are back, by the names that
        OpenAI's headers give them; empty for a client without such a limit."""
        limit = self.client.requests_per_minute
        if limit is None:
            return {}
        interval_ns = _MINUTE_NS // limit
        used_ns = max(0, self._full_at_ns - now_ns)
        remaining = max(0, (limit * interval_ns - used_ns) // interval_ns)
        return {"limit": str(limit), "remaining": str(remaining), "reset": f"{-(-used_ns // 1_000_000_000)}s"}


def key_digest(key: bytes) -> str:
    """Returns the SHA-256 of a key in lower-case hexadecimal digits."""
    return sha256(key).hexdigest()


def own_clients(api_key: str | None) -> list[Client]:
    """Returns the client of the key in the server's settings, if there is one: an admin without limits."""
    return [] if api_key is None else [Client(DEFAULT_NAME, key_digest(api_key.encode()), admin=True)]


class KeyRing:
    """The clients of a server, found by their keys. `is_open`: no key is needed and none is looked at. Not
    thread-safe."""

    def __init__(self, clients: Sequence[Client], *, is_open: bool = False) -> None:
        self._open_to = [ClientMeter(OPEN_CLIENT)] if is_open else []
        self._meters: list[ClientMeter] = []
        self.replace(clients)

    def __len__(self) -> int:
        return len(self._meters)

    @property
    def clients(self) -> Sequence[Client]:
        return [meter.client for meter in self._meters]

    def replace(self, clients: Sequence[Client]) -> None:
        """Use these clients from now on. The use of each is kept by its name. Raises InvalidKeys and changes nothing
        where two clients have one name or one key."""
        taken: set[tuple[str, str]] = set()
        for client in clients:
            own = {("name", client.name), ("sha256", client.sha256)}
            if taken & own:
                raise InvalidKeys(f"the key '{client.name}' has the name or the value of another key")
            taken |= own
        known = {meter.client.name: meter for meter in self._meters}
        self._meters = [known.get(client.name) or ClientMeter(client) for client in clients]
        for meter, client in zip(self._meters, clients, strict=True):
            meter.client = client

    def find(self, offered: Iterable[bytes]) -> list[ClientMeter]:
        """Returns the clients of these keys: none, one, or several where they belong to different clients."""
        if self._open_to:
            return self._open_to
        digests = [key_digest(key) for key in offered]
        return [one for one in self._meters if any([compare_digest(one.client.sha256, sent) for sent in digests])]
