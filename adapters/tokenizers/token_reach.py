"""The most characters of a text that one token can cover, where a tokenizer's parts prove it.

`num_tokens >= len(text) / reach` then refuses a text for its length without encoding it. A token covers no more than it
spells, so the reach is the longest token's length, times how far the normalizer may shorten what it gets:

    normalizer                          characters in for one out
    none, Prepend, ByteLevel, Lowercase 1
    NFD, NFKD                           1
    NFC, NFKC                           4 (UAX 15: no character decomposes into more)
    Replace(text, content)              text / content, if longer; unknown for a pattern, or where nothing is left

Unknown (None) is everything that can make text vanish without a token: other normalizers, a pre-tokenizer that removes
separators, an unknown-token that stands for a whole word or run, a model that skips what it does not know, and added
tokens that take the spaces beside them along.
"""

from collections.abc import Callable, Iterable, Mapping
from math import ceil
from typing import Any, cast

from adapters.tokenizers.library import RustTokenizer, part_state
from adapters.tokenizers.token_bytes import BYTE_OF_CHARACTER

_MAX_COMPOSED = 4
_KEEPING_NORMALIZERS = frozenset({"Prepend", "ByteLevel", "Lowercase", "NFD", "NFKD"})
_KEEPING_PRE_TOKENIZERS = frozenset({"ByteLevel", "Metaspace", "Digits", "UnicodeScripts"})
_SPLITTING_PRE_TOKENIZERS = frozenset({"Split", "Punctuation"})


def token_reach(rust: RustTokenizer, tokens: Iterable[str]) -> int | None:
    """Return the most characters that one of `tokens` covers; None where no such number can be proven."""
    try:
        shrinking, keeps_all = _shrinking(part_state(rust.normalizer)), _keeps_all(part_state(rust.pre_tokenizer))
    except Exception:  # a part that a class of transformers brings as Python code cannot be looked into
        return None
    if shrinking is None or not keeps_all or not _names_all(rust):
        return None
    added = rust.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    normalize = _normalize_with(rust.normalizer)
    longest = max(map(len, tokens), default=0)
    longest_added = max((max(len(token.content), len(normalize(token.content))) for token in added), default=0)
    return ceil(max(longest, longest_added, 1) * shrinking)


def _normalize_with(normalizer: Any) -> Callable[[str], str]:
    return str if normalizer is None else cast("Callable[[str], str]", normalizer.normalize_str)


def _shrinking(normalizer: Mapping[str, Any]) -> float | None:
    """Return how many characters the normalizer reads for each that it writes, at most."""
    kind = normalizer.get("type")
    if kind is None or kind in _KEEPING_NORMALIZERS:
        return 1
    if kind in ("NFC", "NFKC"):
        return _MAX_COMPOSED
    if kind == "Replace":
        pattern, content = normalizer["pattern"].get("String"), normalizer["content"]
        return max(1, len(pattern) / len(content)) if pattern and content else None
    if kind == "Sequence":
        product = 1.0
        for step in normalizer["normalizers"]:
            factor = _shrinking(step)
            if factor is None:
                return None
            product *= factor
        return product
    return None


def _keeps_all(pre_tokenizer: Mapping[str, Any]) -> bool:
    """Whether every character reaches the model."""
    kind = pre_tokenizer.get("type")
    if kind == "Sequence":
        return all(_keeps_all(step) for step in pre_tokenizer["pretokenizers"])
    if kind in _SPLITTING_PRE_TOKENIZERS:
        return pre_tokenizer.get("behavior") != "Removed"
    return kind is None or kind in _KEEPING_PRE_TOKENIZERS


def _names_all(rust: RustTokenizer) -> bool:
    """Whether the model gives at least one token for every character it does not know, or knows all there can be."""
    model = rust.model
    if type(model).__name__ != "BPE":
        return False
    if model.unk_token is not None and not model.fuse_unk:
        return True
    if model.byte_fallback:
        return all(rust.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    is_affixed = bool(model.continuing_subword_prefix or model.end_of_word_suffix)
    gets_bytes = not is_affixed and _is_byte_level(part_state(rust.pre_tokenizer))
    return gets_bytes and all(rust.token_to_id(character) is not None for character in BYTE_OF_CHARACTER)


def _is_byte_level(pre_tokenizer: Mapping[str, Any]) -> bool:
    """Whether the model is handed nothing but the 256 characters that stand for bytes."""
    steps = pre_tokenizer.get("pretokenizers", ())
    return pre_tokenizer.get("type") == "ByteLevel" or any(_is_byte_level(step) for step in steps)
