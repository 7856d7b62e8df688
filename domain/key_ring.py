"""The keys that a server takes, known by their digests only, and the client behind each.

Invariant: finding a key compares with every digest, in constant time each, so that nothing can be learnt from how long
it takes. Keys are random, so a plain hash of one cannot be turned back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest

from domain.client import ANYBODY, DEFAULT_NAME, Client
from domain.client_meter import ClientMeter
from domain.errors import InvalidKeys


def key_digest(key: bytes) -> bytes:
    return sha256(key).digest()


@dataclass(frozen=True, slots=True)
class Key:
    """`digest`: by `key_digest`."""

    digest: bytes
    client: Client


def own_keys(api_key: str | None) -> list[Key]:
    """The key in the server's settings, if there is one: an admin's, without limits."""
    return [] if api_key is None else [Key(key_digest(api_key.encode()), Client(DEFAULT_NAME, is_admin=True))]


class KeyRing:
    """`is_open`: no key is needed and none is looked at. Not thread-safe."""

    def __init__(self, keys: Sequence[Key], *, is_open: bool = False) -> None:
        self._open_to = [ClientMeter(ANYBODY)] if is_open else []
        self._keys: list[tuple[bytes, ClientMeter]] = []
        self.replace(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def replace(self, keys: Sequence[Key]) -> None:
        """From now on these. What a client has used is remembered by its name. Raises InvalidKeys and keeps what was
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


__all__ = ("Key", "KeyRing", "key_digest", "own_keys")
