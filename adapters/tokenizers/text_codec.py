"""Text to token ids and whole texts back, over either kind of tokenizer. Adds no special tokens; any thread."""

from collections.abc import Sequence
from dataclasses import dataclass

from adapters.tokenizers.library import PythonTokenizer, RustTokenizer


@dataclass(frozen=True, slots=True)
class EncodedText:
    """`spans`: for each id the (start, end) of its characters in the text, ascending; None where unknown."""

    ids: list[int]
    spans: list[tuple[int, int]] | None


class TextCodec:
    """`rust` does the work where there is one: it is faster, knows spans and is safe from any thread."""

    def __init__(self, tokenizer: PythonTokenizer, rust: RustTokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._rust = rust

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that are left out of what people read."""
        if self._rust is None:
            return frozenset(self._tokenizer.all_special_ids)
        added = self._rust.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

    def encode(self, text: str) -> EncodedText:
        if self._rust is None:
            return EncodedText(self._tokenizer.encode(text, add_special_tokens=False), None)
        encoding = self._rust.encode(text, add_special_tokens=False)
        return EncodedText(encoding.ids, encoding.offsets)

    def start_ids(self) -> tuple[int, ...]:
        """The special tokens that the model expects before a raw text."""
        probe = "a"
        plain = self.encode(probe).ids
        with_special = self._encode_with_special(probe)
        for start in range(len(with_special) - len(plain) + 1):
            if with_special[start : start + len(plain)] == plain:
                return tuple(with_special[:start])
        return ()

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        """Exactly what the tokens say: spaces before punctuation are not removed."""
        if self._rust is None:
            return self._tokenizer.decode(
                list(ids), skip_special_tokens=skip_special, clean_up_tokenization_spaces=False
            )
        return self._rust.decode(list(ids), skip_special_tokens=skip_special)

    def _encode_with_special(self, text: str) -> list[int]:
        if self._rust is None:
            return self._tokenizer.encode(text, add_special_tokens=True)
        return self._rust.encode(text, add_special_tokens=True).ids


__all__ = ("EncodedText", "TextCodec")
