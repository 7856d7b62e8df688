"""Text to token ids and whole texts back, over either kind of tokenizer. Adds no special tokens; any thread.

    TextCuts ──► parts of a text ──► EncodedParts: a cache ──► TextEncoder ──► TextCodec

A conversation comes back with each turn, and grows at its end, so texts are encoded in parts, and known parts are not
encoded again. A tokenizer looks for added tokens first and encodes the text between them on its own, so a part that
begins with an added token is encoded as it is in the whole. Exceptions begin no part: tokens that include the spaces
beside them, that are only found between words, or that are looked for in normalized text, which is made after the
others were found. Parts are decided from the beginning of the text on, each by its own text: two texts that begin alike
have the same parts up to where they differ.

Parts are cached by a digest of their owner and their text, so the time of an encoding shows no tenant which texts
another tenant has sent. The last part of a text is not cached: in the next turn it goes on. The least recently used are
evicted first. One text displaces at most half of the cache: the beginning of a longer one is kept now, and the rest
with the next turn.

The interpreter's lock is held only to copy ids: encoding happens without it. A text that is too long for its tokens to
fit is refused unencoded.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, groupby
from threading import Lock
from typing import NamedTuple

from adapters.tokenizers.library import PythonTokenizer, RustTokenizer
from adapters.tokenizers.token_bytes import MAX_TOKEN_CHARS, most_chars
from application.ports.tokenizer import PromptTooLong, check_length
from domain.id_row import IdRow

_SHORT_TOKENS = 64
"""Few enough to decode with the interpreter's lock held: a few microseconds."""

PART_CHARS = 2_048
"""The least length of a part, but for the last: some 500 tokens, half a millisecond of encoding."""

MAX_TOKENS = 2**19
"""The bound of the cache: two megabytes of ids, and the keys."""

PART_TOKENS = 8
"""Counted for each part beside its tokens: a part that is encoded to nothing takes memory too."""

_FILLINGS = (" a b", "word", "\n", "", " naïve 漢字 ", "1 2  ")


class EncodedText(NamedTuple):
    """The ids of a text, and the starts of its parts, ascending: characters and tokens before each. `reach`: the
    characters from a start on that decide whether a text is cut there."""

    ids: IdRow
    starts: Sequence[tuple[int, int]] = ((0, 0),)
    reach: int = 0

    def start_shared(self, num_chars: int) -> tuple[int, int]:
        """Returns the last start of a part that every text has which begins with the same `num_chars` characters."""
        return next((one for one in reversed(self.starts) if one[0] + self.reach <= num_chars), (0, 0))


class TextCuts:
    """The places where one tokenizer's texts may be cut. Any thread. `reach`: see `EncodedText`."""

    def __init__(self, pattern: "re.Pattern[str]", cuttable: frozenset[str], reach: int) -> None:
        """`pattern` finds added tokens; those that are `cuttable` may begin a part."""
        self._pattern = pattern
        self._cuttable = cuttable
        self.reach = reach

    @classmethod
    def of(cls, rust: RustTokenizer) -> "TextCuts | None":
        """Returns None where no cut is safe, by the tokenizer's description or by trying it."""
        added = [token for token in rust.get_added_tokens_decoder().values() if token.content]
        cuttable = [one.content for one in added if not (one.normalized or one.lstrip or one.rstrip)]
        if not cuttable or any(token.single_word for token in added):
            return None
        found = [token.content for token in added if not token.normalized]
        cuts = cls(re.compile(longest_of(found)), frozenset(cuttable), max(map(len, found)))
        return cuts if cuts._are_safe(rust) else None

    def parts(self, text: str, part_chars: int = PART_CHARS) -> Iterator[str]:
        start = 0
        for match in self._pattern.finditer(text):
            at = match.start()
            if match[0] in self._cuttable and at - start >= max(1, part_chars):
                yield text[start:at]
                start = at
        yield text[start:]

    def _are_safe(self, rust: RustTokenizer) -> bool:
        """Try a text with some of the tokens between words, spaces and each other, cut and whole."""
        text = "".join(filling + token for token in sorted(self._cuttable)[:8] for filling in _FILLINGS)
        texts = list(self.parts(text, part_chars=1))
        whole, *parts = rust.encode_batch_fast([text, *texts], add_special_tokens=False)
        return [id for part in parts for id in part.ids] == whole.ids


class EncodedParts:
    """The cache of one tokenizer's encoded parts. Any thread."""

    def __init__(self, encode: Callable[[list[str]], list[IdRow]], max_tokens: int = MAX_TOKENS) -> None:
        """`encode` may be called from any thread."""
        self._encode = encode
        self._max_tokens = max_tokens
        self._lock = Lock()
        self._parts: OrderedDict[bytes, IdRow] = OrderedDict()
        self._num_tokens = 0

    @property
    def num_tokens(self) -> int:
        """The present size, with PART_TOKENS for each part."""
        return self._num_tokens

    def of(self, texts: Sequence[str], owner: str) -> list[IdRow]:
        """Returns the ids of the parts of a text, from the cache or encoded now."""
        keys = [_key(owner, text) for text in texts]
        with self._lock:
            found = {key: self._parts[key] for key in keys if key in self._parts}
            for key in found:
                self._parts.move_to_end(key)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        made = dict(zip(missing, self._encode(list(missing.values())), strict=True))
        self._keep({key: ids for key, ids in made.items() if key != keys[-1]})
        found |= made
        return [found[key] for key in keys]

    def _keep(self, made: dict[bytes, IdRow]) -> None:
        room = self._max_tokens // 2
        with self._lock:
            for key, ids in made.items():
                room -= len(ids) + PART_TOKENS
                if room < 0:
                    break
                self._forget(key)
                self._parts[key] = ids
                self._num_tokens += len(ids) + PART_TOKENS
            while self._num_tokens > self._max_tokens:
                self._forget(next(iter(self._parts)))

    def _forget(self, key: bytes) -> None:
        ids = self._parts.pop(key, None)
        if ids is not None:
            self._num_tokens -= len(ids) + PART_TOKENS


class TextEncoder:
    """Text to ids by a Rust tokenizer. Any thread. `max_token_chars`: no token covers more."""

    def __init__(self, rust: RustTokenizer, max_token_chars: int = MAX_TOKEN_CHARS) -> None:
        self._rust, self._max_token_chars = rust, max_token_chars
        self._cuts = TextCuts.of(rust)
        self._parts = EncodedParts(self._encode_each)

    def encode(self, text: str, *, max_tokens: int | None = None, owner: str = "") -> EncodedText:
        """Encode a text. `owner`: the tenant whose encodings are cached. Raises PromptTooLong beyond `max_tokens`."""
        check_length(len(text), self._max_token_chars, max_tokens)
        parts = [text] if self._cuts is None else list(self._cuts.parts(text))
        encoded = self._parts.of(parts, owner)
        _check_count(sum(map(len, encoded)), max_tokens)
        starts = [(0, 0), *zip(accumulate(map(len, parts)), accumulate(map(len, encoded)), strict=True)][:-1]
        return EncodedText(IdRow.joined(encoded), starts, 0 if self._cuts is None else self._cuts.reach)

    def _encode_each(self, texts: list[str]) -> list[IdRow]:
        return [IdRow(one.ids) for one in self._rust.encode_batch_fast(texts, add_special_tokens=False)]


class TextCodec:
    """`rust` does the work where there is one: it is faster, knows spans and is safe from any thread."""

    def __init__(self, tokenizer: PythonTokenizer, rust: RustTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._rust = rust
        # Holds the interpreter's lock, a tenth of a second for a large vocabulary: once.
        vocabulary = tokenizer.get_vocab()
        self.vocab_size = max(vocabulary.values()) + 1
        self.max_token_chars = MAX_TOKEN_CHARS if rust is None else most_chars(rust, vocabulary)
        self._encoder = None if rust is None else TextEncoder(rust, self.max_token_chars)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Ids by text of the tokens that are left out of answers."""
        if self._rust is None:
            special_ids = frozenset(self._tokenizer.all_special_ids)
            return {name: id for name, id in self._tokenizer.get_vocab().items() if id in special_ids}
        added = self._rust.get_added_tokens_decoder()
        return {token.content: id for id, token in added.items() if token.special}

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids by text of the tokens that were added to the vocabulary, special ones among them."""
        if self._rust is None:
            return {token.content: id for id, token in self._tokenizer.added_tokens_decoder.items()}
        return {token.content: id for id, token in self._rust.get_added_tokens_decoder().items()}

    def encode(self, text: str, *, max_tokens: int | None = None, owner: str = "") -> IdRow:
        """Returns the ids of a text. See `TextEncoder.encode`."""
        return self.encode_parts(text, max_tokens=max_tokens, owner=owner).ids

    def encode_parts(self, text: str, *, max_tokens: int | None = None, owner: str = "") -> EncodedText:
        """Encode a text. See `TextEncoder.encode`."""
        if self._encoder is not None:
            return self._encoder.encode(text, max_tokens=max_tokens, owner=owner)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        _check_count(len(ids), max_tokens)
        return EncodedText(IdRow(ids))

    def ends(self) -> tuple[IdRow, IdRow]:
        """The special tokens that the model expects before a raw text, and behind one that is complete."""
        probe = "a"
        plain = self.encode(probe)
        with_special = self._encode_with_special(probe)
        for start in range(len(with_special) - len(plain) + 1):
            if with_special[start : start + len(plain)] == plain:
                return IdRow(with_special[:start]), IdRow(with_special[start + len(plain) :])
        return IdRow(), IdRow()

    def between(self) -> IdRow:
        """The special tokens between two texts that the model reads as a pair. Raises ValueError without any, or where
        the tokens around the pair are not those around one text."""
        plain, (start, end) = self.encode("a"), self.ends()
        pair = IdRow([] if self._rust is None else self._rust.encode("a", "a", add_special_tokens=True).ids)
        middle = pair[len(start) + len(plain) : len(pair) - len(plain) - len(end)]
        if not middle or pair != IdRow.joined((start, plain, middle, plain, end)):
            raise ValueError("its tokenizer does not join a query and a document")
        return middle

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Returns the exact text: spaces before punctuation are kept."""
        if self._rust is None:
            return self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        if len(ids) <= _SHORT_TOKENS:
            return self._rust.decode(list(ids), skip_special_tokens=skip_special)
        return self._rust.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]

    def _encode_with_special(self, text: str) -> list[int]:
        if self._rust is None:
            return self._tokenizer.encode(text, add_special_tokens=True)
        return self._rust.encode(text, add_special_tokens=True).ids


def _check_count(num_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and num_tokens > max_tokens:
        raise PromptTooLong(num_tokens)


def _key(owner: str, text: str) -> bytes:
    owned = blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16, key=owned).digest()


def longest_of(texts: Iterable[str]) -> str:
    """Returns a regular expression for the longest of `texts` that matches. It branches where they differ: some
    families have thousands, and tried in turn they take seconds for a few thousand `<`, with the interpreter held."""
    ordered = sorted(set(texts))
    pairs = enumerate(zip(ordered[0], ordered[-1], strict=False))  # a prefix of these two is a prefix of all
    num_shared = next((at for at, (one, other) in pairs if one != other), len(ordered[0]))
    start = ordered[0][:num_shared]
    rests = [text[num_shared:] for text in ordered]
    branches = [longest_of(rest) for _, rest in groupby(filter(None, rests), key=lambda rest: rest[0])]
    if not branches:
        return re.escape(start)
    return f"{re.escape(start)}(?:{'|'.join(branches)}){'?' if '' in rests else ''}"
