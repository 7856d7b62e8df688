"""What an export is sealed with: a chain of digests against damage, and marks under a key against forgery.

    digest_i = BLAKE2b-256(digest_{i-1} || the bytes of entry i),   digest_{-1} over the beginning of the file
    mark_i   = BLAKE2b-256 under the key, of digest_i               in a signed export only

A digest covers everything before it, so an entry cannot be changed, moved, left out or taken over from another export
without breaking all seals after it; the end of the file is an entry as well, so nothing can be cut off. Without the key
anybody can make new digests: they show damage, not who wrote the file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest

SEAL_BYTES = 32
KEY_BYTES = 32
KEY_ID_BYTES = 8
UNSIGNED = bytes(KEY_ID_BYTES)

_MARK = b"cairn mark"
_KEY_ID = b"cairn key id"


@dataclass(frozen=True, slots=True, repr=False)
class ExportKey:
    """A secret of 32 bytes, shared by who exports and who imports."""

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(self.secret)}")

    @property
    def id(self) -> bytes:
        """Tells keys apart and gives nothing of the secret away. Never all zeros."""
        return blake2b(b"", key=self.secret, digest_size=KEY_ID_BYTES - 1, person=_KEY_ID).digest() + b"\x01"


class Seals:
    """The seals of one file, in order. `key` None: digests only. One thread."""

    def __init__(self, beginning: bytes, key: ExportKey | None) -> None:
        self._digest = blake2b(beginning, digest_size=SEAL_BYTES).digest()
        self._key = key

    def next(self, entry: Iterable[bytes | memoryview]) -> tuple[bytes, bytes]:
        """Digest and mark (empty without a key) of the next entry, given in consecutive buffers."""
        digest = blake2b(self._digest, digest_size=SEAL_BYTES)
        for buffer in entry:
            digest.update(buffer)
        self._digest = digest.digest()
        if self._key is None:
            return self._digest, b""
        mark = blake2b(self._digest, key=self._key.secret, digest_size=SEAL_BYTES, person=_MARK)
        return self._digest, mark.digest()


def matches(expected: bytes, found: bytes) -> bool:
    """In a time that does not tell where they differ."""
    return compare_digest(expected, found)


__all__ = ("KEY_BYTES", "KEY_ID_BYTES", "SEAL_BYTES", "UNSIGNED", "ExportKey", "Seals", "matches")
