"""Text to token ids and whole texts back, over either kind of tokenizer. Adds no special tokens; any thread.

Long texts are encoded in parts where the tokenizer allows it, and parts that were encoded before are not encoded again
(`encoded_parts`): a conversation comes back with each turn, and grows at its end.

The interpreter's lock is held only to copy ids: encoding happens without it, a text that cannot fit is refused for its
length or its number of tokens before any list is made, and spans are looked up one by one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from adapters.tokenizers.encoded_parts import PART_CHARS, EncodedParts, PartSpans, TextCuts
from adapters.tokenizers.library import Encoding, PythonTokenizer, RustTokenizer
from adapters.tokenizers.token_bytes import token_reach
from application.ports.tokenizer import PromptTooLong
from domain.id_row import IdRow

_SHORT_TOKENS = 64
"""Few enough to decode with the interpreter's lock held: a few microseconds."""


class Spans(Protocol):
    """For each token the (start, end) of its characters in the text, ascending."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True)
class EncodedText:
    """`spans`: where each id's characters are; None where unknown or not wanted."""

    ids: IdRow
    spans: Spans | None


class _EncodingSpans:
    """Spans read from the encoding when asked for: a list of all of them takes 20 times as long as one of the ids."""

    __slots__ = ("_encoding",)

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def __len__(self) -> int:
        return len(self._encoding)

    def __getitem__(self, index: int, /) -> tuple[int, int]:
        return self._encoding.token_to_chars(index)


class TextEncoder:
    """Text to ids by a Rust tokenizer. Any thread."""

    def __init__(self, rust: RustTokenizer, reach: int | None = None) -> None:
        """`reach`: characters that a token covers at most, where that is known."""
        self._rust = rust
        self._reach = reach
        self._cuts = TextCuts.of(rust)
        self._parts = EncodedParts(self._encode_each)

    def encode(
        self, text: str, *, max_tokens: int | None = None, wants_spans: bool = True, owner: str = ""
    ) -> EncodedText:
        """Encode a text. `owner`: the tenant whose encodings are cached. Raises PromptTooLong beyond `max_tokens`."""
        if max_tokens is not None and self._reach is not None and len(text) > max_tokens * self._reach:
            raise PromptTooLong(-(-len(text) // self._reach), is_exact=False)
        if self._cuts is not None and len(text) >= 2 * PART_CHARS:
            parts = self._parts.of(list(self._cuts.parts(text)), owner)
            _check_count(sum(len(part.ids) for part in parts), max_tokens)
            return EncodedText(IdRow.joined(part.ids for part in parts), PartSpans(parts))
        encode = self._rust.encode_batch if wants_spans else self._rust.encode_batch_fast
        encoding = encode([text], add_special_tokens=False)[0]
        _check_count(len(encoding), max_tokens)
        return EncodedText(IdRow(encoding.ids), _EncodingSpans(encoding) if wants_spans else None)

    def _encode_each(self, texts: list[str]) -> list[Encoding]:
        return self._rust.encode_batch(texts, add_special_tokens=False)


class TextCodec:
    """`rust` does the work where there is one: it is faster, knows spans and is safe from any thread."""

    def __init__(self, tokenizer: PythonTokenizer, rust: RustTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._rust = rust
        vocabulary = tokenizer.get_vocab()  # holds the interpreter's lock, a tenth of a second for a large one: once
        self.vocab_size = max(vocabulary.values()) + 1
        self.reach = token_reach(rust, vocabulary) if rust is not None else None
        self._encoder = TextEncoder(rust, self.reach) if rust is not None else None

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

    def encode(
        self, text: str, *, max_tokens: int | None = None, wants_spans: bool = True, owner: str = ""
    ) -> EncodedText:
        """Encode a text. See `TextEncoder.encode`."""
        if self._encoder is not None:
            return self._encoder.encode(text, max_tokens=max_tokens, wants_spans=wants_spans, owner=owner)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        _check_count(len(ids), max_tokens)
        return EncodedText(IdRow(ids), None)

    def ends(self) -> tuple[IdRow, IdRow]:
        """The special tokens that the model expects before a raw text, and behind one that is complete."""
        probe = "a"
        plain = self.encode(probe).ids
        with_special = self._encode_with_special(probe)
        for start in range(len(with_special) - len(plain) + 1):
            if with_special[start : start + len(plain)] == plain:
                return IdRow(with_special[:start]), IdRow(with_special[start + len(plain) :])
        return IdRow(), IdRow()

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
