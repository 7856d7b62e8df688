"""The bytes that each token contributes to a text, for decoders whose output is the concatenation of them.

    decoder                                               a token's bytes
    ByteLevel                                             each character stands for one byte; otherwise its UTF-8
    Sequence(Replace*, ByteFallback?, Fuse, Strip?)       `<0xE2>` is that byte; otherwise its UTF-8 after Replace
    Metaspace                                             its UTF-8 with the word mark as a space

Other decoders (WordPiece, suffixes, patterns) look at a token's neighbours; `token_bytes_of` returns None for them.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from adapters.tokenizers.library import RustTokenizer


@dataclass(frozen=True, slots=True)
class LeadingRule:
    """The characters that the decoder drops at the start of a text.

    `characters` of at most `count` are dropped from the text; `first_token_mark` from all of the first token.
    """

    character: str = " "
    count: int = 0
    first_token_mark: str = ""


class TokenBytes:
    """Bytes of a token by id, cached. Any thread."""

    def __init__(
        self,
        rust: RustTokenizer,
        *,
        is_byte_level: bool,
        has_byte_fallback: bool = False,
        replacements: tuple[tuple[str, str], ...] = (),
        leading: LeadingRule | None = None,
    ) -> None:
        self._rust = rust
        self._is_byte_level = is_byte_level
        self._has_byte_fallback = has_byte_fallback
        self._replacements = replacements
        self._known: dict[int, bytes] = {}
        self.leading = leading or LeadingRule()

    def of(self, token_id: int) -> bytes:
        """Empty for ids that the tokenizer does not have (padding rows of an embedding)."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self.uncached(token_id)
        return known

    def uncached(self, token_id: int) -> bytes:
        """As `of`, for a look at all of them."""
        token = self._rust.id_to_token(token_id)
        return b"" if token is None else self._bytes(token)

    def of_first(self, token_id: int) -> bytes:
        """Bytes of the token that opens a text."""
        mark = self.leading.first_token_mark
        token = self._rust.id_to_token(token_id) if mark else None
        return self.of(token_id) if token is None else self._bytes(token.replace(mark, ""))

    def _bytes(self, token: str) -> bytes:
        if self._is_byte_level:
            try:
                return bytes(BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:
                return token.encode()
        if self._has_byte_fallback and _BYTE_TOKEN.fullmatch(token):
            return bytes.fromhex(token[3:5])
        for old, new in self._replacements:
            token = token.replace(old, new)
        return token.encode("utf-8", "replace")


_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def _byte_of_character() -> dict[str, int]:
    """Byte-level vocabularies write printable Latin-1 bytes as themselves and the others as U+0100 onward."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    table.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return table


BYTE_OF_CHARACTER = _byte_of_character()
"""How byte-level vocabularies write each of the 256 bytes."""


def token_bytes_of(rust: RustTokenizer) -> TokenBytes | None:
    """Recognise the tokenizer's decoder; None when its tokens cannot be decoded one by one."""
    if rust.decoder is None:
        return None
    steps = _steps(cast("dict[str, Any]", json.loads(rust.decoder.__getstate__())))
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return TokenBytes(rust, is_byte_level=True)
    if kinds == ["Metaspace"]:
        mark = steps[0].get("replacement", "▁")
        drops_first = steps[0].get("prepend_scheme", "always") != "never"
        leading = LeadingRule(first_token_mark=mark if drops_first else "")
        return TokenBytes(rust, is_byte_level=False, replacements=((mark, " "),), leading=leading)
    return _sentence_pieces(rust, steps)


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        return cast("list[dict[str, Any]]", decoder["decoders"])
    return [decoder]


def _sentence_pieces(rust: RustTokenizer, steps: list[dict[str, Any]]) -> TokenBytes | None:
    replacements: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        replacements.append((steps[0]["pattern"]["String"], steps[0]["content"]))
        steps = steps[1:]
    has_byte_fallback = bool(steps) and steps[0]["type"] == "ByteFallback"
    steps = steps[has_byte_fallback:]
    if not steps or steps[0]["type"] != "Fuse":
        return None
    leading = LeadingRule()
    if len(steps) == 2 and steps[1]["type"] == "Strip" and steps[1]["stop"] == 0:
        leading = LeadingRule(steps[1]["content"], steps[1]["start"])
    elif len(steps) > 1:
        return None
    return TokenBytes(
        rust,
        is_byte_level=False,
        has_byte_fallback=has_byte_fallback,
        replacements=tuple(replacements),
        leading=leading,
    )
