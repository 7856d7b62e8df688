"""The bytes that each token contributes to a text, and how much of a text one token covers.

    decoder                                               a token's bytes
    ByteLevel                                             each character stands for one byte; otherwise its UTF-8
    Sequence(Replace*, ByteFallback?, Fuse, Strip?)       `<0xE2>` is that byte; otherwise its UTF-8 after Replace
    Metaspace                                             its UTF-8 with the word mark as a space

Other decoders (WordPiece, suffixes, patterns) look at a token's neighbours, so a token has no bytes of its own.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias, cast

from adapters.tokenizers.library import RustTokenizer

MAX_TOKEN_CHARS = 512
"""More characters than one token covers in any known vocabulary: the longest are 128 spaces, or as many letters of
which a normalizer composes each from up to four. For tokenizers that have no closer bound (`most_chars`)."""

_KEEPING = frozenset(("ByteLevel", "Split", "Digits", "Punctuation", "NFC", "Lowercase"))
"""The steps before a tokenizer's model that remove no character, unless their behavior is to."""

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")

Step: TypeAlias = Mapping[str, Any]
"""A normalizer, pre-tokenizer or decoder as in `tokenizer.json`."""


def _steps(part: Any) -> list[Step]:
    """Returns the steps of a part of a tokenizer, sequences taken apart; none where there is no part. Raises any
    exception for a part that a class of transformers implements in Python."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__())))


def _flat(step: Step) -> Iterator[Step]:
    if step["type"] != "Sequence":
        yield step
        return
    inner = next(step[name] for name in ("normalizers", "pretokenizers", "decoders") if name in step)
    for one in cast("list[Step]", inner):
        yield from _flat(one)


def _byte_of_character() -> dict[str, int]:
    """Byte-level vocabularies write printable Latin-1 bytes as themselves and the others as U+0100 onward."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    table.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return table


_BYTE_OF_CHARACTER = _byte_of_character()


def token_bytes_of(rust: RustTokenizer) -> Callable[[int], bytes] | None:
    """Returns a function from a token's id to its bytes, which are empty for ids without a token; None for a decoder
    whose tokens have no bytes of their own. The space that some decoders drop at the start of a text is included."""
    steps = _steps(rust.decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return partial(_bytes_of, rust, _byte_level)
    if kinds == ["Metaspace"]:
        return partial(_bytes_of, rust, partial(_spelled, [(steps[0].get("replacement", "▁"), " ")]))
    replaced: list[tuple[str, str]] = []
    while steps and steps[0]["type"] == "Replace" and "String" in steps[0]["pattern"]:
        replaced.append((steps[0]["pattern"]["String"], steps[0]["content"]))
        del steps[0]
    has_bytes = bool(steps) and steps[0]["type"] == "ByteFallback"
    end = steps[has_bytes:]
    is_known = [step["type"] for step in end] in (["Fuse"], ["Fuse", "Strip"]) and end[-1].get("stop", 0) == 0
    return partial(_bytes_of, rust, partial(_spelled, replaced, has_bytes=has_bytes)) if is_known else None


def _bytes_of(rust: RustTokenizer, written: Callable[[str], bytes], token_id: int) -> bytes:
    token = rust.id_to_token(token_id)
    return b"" if token is None else written(token)


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:
        return token.encode()


def _spelled(replaced: Iterable[tuple[str, str]], token: str, *, has_bytes: bool = False) -> bytes:
    if has_bytes and _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(token[3:5])
    for old, new in replaced:
        token = token.replace(old, new)
    return token.encode("utf-8", "replace")


def most_chars(rust: RustTokenizer, vocabulary: Collection[str]) -> int:
    """Returns a bound on the characters of a text that one token covers: the length of the longest token, in bytes,
    where each byte of a text is in a token. That is so where all bytes are tokens, no step removes characters, and no
    added token includes the spaces beside it. NFC composes fewer than two characters to a byte."""
    try:
        normalizing, splitting = _steps(rust.normalizer), _steps(rust.pre_tokenizer)
    except Exception:  # a part in Python
        return MAX_TOKEN_CHARS
    steps = [*normalizing, *splitting]
    is_whole = all(step["type"] in _KEEPING and step.get("behavior") != "Removed" for step in steps)
    has_bytes = any(step["type"] == "ByteLevel" for step in splitting) and _BYTE_OF_CHARACTER.keys() <= set(vocabulary)
    affixes = [getattr(rust.model, name, "?") for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    strips = any(token.lstrip or token.rstrip for token in rust.get_added_tokens_decoder().values())
    if strips or any(affixes) or not (is_whole and has_bytes):
        return MAX_TOKEN_CHARS
    return min(MAX_TOKEN_CHARS, max(map(len, vocabulary)) * (2 if normalizing else 1))
