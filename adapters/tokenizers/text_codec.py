"""Text to token ids and whole texts back, over either kind of tokenizer. Adds no special tokens; any thread.

Texts are encoded in parts where the tokenizer allows it, and parts that were encoded before are not encoded again
(`encoded_parts`): a conversation comes back with each turn, and grows at its end.

The interpreter's lock is held only to copy ids: encoding happens without it. A text that is too long for its tokens to
fit is refused unencoded.
"""

from collections.abc import Mapping, Sequence

from adapters.tokenizers.encoded_parts import EncodedParts, TextCuts
from adapters.tokenizers.library import PythonTokenizer, RustTokenizer
from application.ports.tokenizer import PromptTooLong
from domain.id_row import IdRow

_SHORT_TOKENS = 64
"""Few enough to decode with the interpreter's lock held: a few microseconds."""

MAX_TOKEN_CHARS = 512
"""More characters than one token covers in any known vocabulary: the longest are 128 spaces, or as many letters of
which a normalizer composes each from up to four."""


class TextEncoder:
    """Text to ids by a Rust tokenizer. Any thread."""

    def __init__(self, rust: RustTokenizer) -> None:
        self._rust = rust
        self._cuts = TextCuts.of(rust)
        self._parts = EncodedParts(self._encode_each)

    def encode(self, text: str, *, max_tokens: int | None = None, owner: str = "") -> IdRow:
        """Encode a text. `owner`: the tenant whose encodings are cached. Raises PromptTooLong beyond `max_tokens`."""
        check_length(len(text), max_tokens)
        parts = [text] if self._cuts is None else list(self._cuts.parts(text))
        encoded = self._parts.of(parts, owner)
        _check_count(sum(map(len, encoded)), max_tokens)
        return IdRow.joined(encoded)

    def _encode_each(self, texts: list[str]) -> list[IdRow]:
        return [IdRow(one.ids) for one in self._rust.encode_batch_fast(texts, add_special_tokens=False)]


class TextCodec:
    """`rust` does the work where there is one: it is faster, knows spans and is safe from any thread."""

    def __init__(self, tokenizer: PythonTokenizer, rust: RustTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._rust = rust
        # Holds the interpreter's lock, a tenth of a second for a large vocabulary: once.
        self.vocab_size = max(tokenizer.get_vocab().values()) + 1
        self._encoder = TextEncoder(rust) if rust is not None else None

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
        """Encode a text. See `TextEncoder.encode`."""
        if self._encoder is not None:
            return self._encoder.encode(text, max_tokens=max_tokens, owner=owner)
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        _check_count(len(ids), max_tokens)
        return IdRow(ids)

    def ends(self) -> tuple[IdRow, IdRow]:
        """The special tokens that the model expects before a raw text, and behind one that is complete."""
        probe = "a"
        plain = self.encode(probe)
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


def check_length(num_chars: int, max_tokens: int | None) -> None:
    """Raises PromptTooLong, with the least number of tokens, for a text that cannot have `max_tokens` or fewer."""
    if max_tokens is not None and num_chars > max_tokens * MAX_TOKEN_CHARS:
        raise PromptTooLong(num_chars // MAX_TOKEN_CHARS + 1, is_exact=False)


def _check_count(num_tokens: int, max_tokens: int | None) -> None:
    if max_tokens is not None and num_tokens > max_tokens:
        raise PromptTooLong(num_tokens)
