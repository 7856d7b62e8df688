"""A cache of encoded parts of long texts, so that a conversation's next turn encodes only its new parts.

Parts are keyed by a digest of their owner and their text: the time of an encoding tells no tenant what another has
sent. The least recently used are evicted first. One text displaces at most half of the cache: the beginning of a longer
one is kept now, and the rest with the next turn.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from threading import Lock
from typing import NamedTuple

from adapters.tokenizers.library import Encoding
from domain.id_row import IdRow

MAX_TOKENS = 2**19
"""The bound of the cache: an encoding takes some 100 bytes a token."""

PART_TOKENS = 8
"""Counted for each part beside its tokens: a part that is encoded to nothing takes memory too."""


class Part(NamedTuple):
    """`ids` of the encoding: the library makes a new list of them at each call."""

    ids: IdRow
    encoding: Encoding
    num_chars: int


class PartSpans:
    """Spans of the tokens of all parts in the whole text. See `text_codec.Spans`."""

    __slots__ = ("_encodings", "_first_chars", "_first_tokens", "_num_tokens")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._encodings = [part.encoding for part in parts]
        self._first_tokens = list(accumulate((len(part.ids) for part in parts), initial=0))
        self._first_chars = list(accumulate((part.num_chars for part in parts), initial=0))
        self._num_tokens = self._first_tokens.pop()

    def __len__(self) -> int:
        return self._num_tokens

    def __getitem__(self, index: int, /) -> tuple[int, int]:
        if not -self._num_tokens <= index < self._num_tokens:
            raise IndexError(index)
        index %= self._num_tokens
        at = bisect_right(self._first_tokens, index) - 1
        start, end = self._encodings[at].token_to_chars(index - self._first_tokens[at])
        return start + self._first_chars[at], end + self._first_chars[at]


class EncodedParts:
    """Any thread."""

    def __init__(self, encode: Callable[[list[str]], list[Encoding]], max_tokens: int = MAX_TOKENS) -> None:
        """`encode`: from any thread."""
        self._encode = encode
        self._max_tokens = max_tokens
        self._lock = Lock()
        self._parts: OrderedDict[bytes, Part] = OrderedDict()
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """The present size, with PART_TOKENS for each part."""
        return self._num_tokens

    def of(self, texts: Sequence[str], owner: str) -> list[Part]:
        """Return the parts, encoded now or before."""
        keys = [_key(owner, text) for text in texts]
        with self._lock:
            found = {key: self._parts[key] for key in keys if key in self._parts}
            for key in keys:
                if key in self._parts:
                    self._parts.move_to_end(key)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        made = dict(zip(missing, self._made(list(missing.values())), strict=True))
        self._keep(made)
        found |= made
        return [found[key] for key in keys]

    def _made(self, texts: list[str]) -> list[Part]:
        encodings = self._encode(texts)
        return [Part(IdRow(one.ids), one, len(text)) for one, text in zip(encodings, texts, strict=True)]

    def _keep(self, made: dict[bytes, Part]) -> None:
        room = self._max_tokens // 2
        with self._lock:
            for key, part in made.items():
                room -= len(part.ids) + PART_TOKENS
                if room < 0:
                    break
                self._forget(key)
                self._parts[key] = part
                self._num_tokens += len(part.ids) + PART_TOKENS
            while self._num_tokens > self._max_tokens:
                self._forget(next(iter(self._parts)))

    def _forget(self, key: bytes) -> None:
        part = self._parts.pop(key, None)
        if part is not None:
            self._num_tokens -= len(part.ids) + PART_TOKENS


def _key(owner: str, text: str) -> bytes:
    owned = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=owned).digest()
