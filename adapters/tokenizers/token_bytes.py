"""Facts about single tokens: the bytes that each contributes to a text, and the most characters that one can cover.

    decoder                                               a token's bytes
    ByteLevel                                             each character stands for one byte; otherwise its UTF-8
    Sequence(Replace*, ByteFallback?, Fuse, Strip?)       `<0xE2>` is that byte; otherwise its UTF-8 after Replace
    Metaspace                                             its UTF-8 with the word mark as a space

Other decoders (WordPiece, suffixes, patterns) look at a token's neighbours, so a token has no bytes of its own.

`num_tokens >= len(text) / reach` refuses a text for its length without encoding it. A token covers no more than it
spells, so the reach is the longest token's length, times the factor by which the normalizer may shorten its input:

    normalizer                          characters in for one out
    none, Prepend, ByteLevel, Lowercase 1
    NFD, NFKD                           1
    NFC, NFKC                           4 (UAX 15: no character decomposes into more)
    Replace(text, content)              text / content, if longer; unknown for a pattern, or an empty content

The reach is unknown wherever text can vanish without a token: other normalizers, a pre-tokenizer that removes
separators, an unknown-token that stands for a whole word or run, a model that skips unknown characters, and added
tokens that include the spaces beside them.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import ceil, prod
from typing import Any, TypeAlias, cast

from adapters.tokenizers.library import RustTokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_MAX_COMPOSED = 4
_KEEPING_NORMALIZERS = frozenset({"Prepend", "ByteLevel", "Lowercase", "NFD", "NFKD"})
_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"})
_SPLITTING_PRE_TOKENIZERS = frozenset({"Split", "Punctuation"})

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


def token_reach(rust: RustTokenizer, tokens: Iterable[str]) -> int | None:
    """Returns the most characters that one of `tokens` covers; None where no such number can be proven."""
    try:
        normalizers, pre_tokenizers = _steps(rust.normalizer), _steps(rust.pre_tokenizer)
    except Exception:  # a part that a class of transformers brings as Python code cannot be examined
        return None
    factors = [_shortening(step) for step in normalizers]
    added = rust.get_added_tokens_decoder().values()
    if not (all(factors) and all(map(_keeps_all, pre_tokenizers)) and _covers_all(rust, pre_tokenizers)):
        return None
    if any(token.lstrip or token.rstrip for token in added):
        return None
    normalize = str if rust.normalizer is None else cast("Callable[[str], str]", rust.normalizer.normalize_str)
    contents = [text for token in added for text in (token.content, normalize(token.content))]
    return ceil(max(1, *map(len, tokens), *map(len, contents)) * prod(factors))


def _shortening(normalizer: Step) -> float:
    """Returns the most characters that the normalizer reads for each that it writes; 0 where that is unknown."""
    kind = normalizer["type"]
    if kind in _KEEPING_NORMALIZERS:
        return 1
    if kind in ("NFC", "NFKC"):
        return _MAX_COMPOSED
    if kind == "Replace" and (pattern := normalizer["pattern"].get("String")) and normalizer["content"]:
        return max(1, len(pattern) / len(normalizer["content"]))
    return 0


def _keeps_all(pre_tokenizer: Step) -> bool:
    kind = pre_tokenizer["type"]
    is_kept = kind in _SPLITTING_PRE_TOKENIZERS and pre_tokenizer.get("behavior") != "Removed"
    return is_kept or kind in _KEEPING_PRE_TOKENIZERS


def _covers_all(rust: RustTokenizer, pre_tokenizers: Iterable[Step]) -> bool:
    """Returns True if the model gives at least one token for every unknown character, or has a token for each."""
    model = rust.model
    if type(model).__name__ != "BPE":
        return False
    if model.unk_token is not None and not model.fuse_unk:
        return True
    if model.byte_fallback:
        return all(rust.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    is_affixed = bool(model.continuing_subword_prefix or model.end_of_word_suffix)
    is_byte_level = not is_affixed and any(step["type"] == "ByteLevel" for step in pre_tokenizers)
    return is_byte_level and all(rust.token_to_id(character) is not None for character in _BYTE_OF_CHARACTER)
