r"""Where in ordinary text a tokenizer surely begins a new piece: behind a letter that a space, a line's end, or one of
a few marks follows.

Byte-level BPE merges within pieces, which a regular expression finds from left to right. In the expressions of the
known families no alternative

* takes a letter and one of those characters right behind it,
* looks back, or ahead of anything but white space that it took (`\s+(?!\S)`),

and one of them takes any letter. So what takes that letter ends with it, in the whole text and in one that is cut off
there; and what follows is found as if the text began there. A step before that one (numbers, Chinese, digits) divides
its texts further, and alike on both sides. What each piece becomes depends on it alone.

The alternatives are listed here, each looked at for this. A tokenizer with another one, or with a part that is not
known to keep this, has no such places. Composing (NFC) neither changes these characters nor joins them to others.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from unicodedata import normalize

from adapters.tokenizers.library import AddedToken, RustTokenizer, part_state

_LETTERS = "A-Za-zÀ-ÖØ-öø-ÿА-яぁ-ゖァ-ヺ一-龥가-힣"
"""Latin, Cyrillic, Japanese, Chinese and Korean: letters by every version of Unicode, and composed as they stand."""

_MARKS = ',.":，。、'

WORD_END = re.compile(rf"[ \n{_MARKS}](?<=[{_LETTERS}][ \n{_MARKS}])(?:(?<=[{_MARKS}])|(?=\S))")
"""A piece begins where it begins. It looks at the letter before that and, behind white space, at what follows: from
outside of these, added tokens that take spaces beside them along cannot reach there."""

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"

WORDS = (
    r" ?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?\p{L}+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    "|".join(_CASED),
    "|".join(f"{word}{_SUFFIX}?" for word in _CASED),
)
"""Each takes any letter."""

OTHERS = (
    "'s|'t|'re|'ve|'m|'ll|'d",
    _SUFFIX,
    "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
    "'(?i:[sdmt]|ll|ve|re)",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"\p{N}",
    r"\p{N}+",
    r"\p{N}{1,2}",
    r"\p{N}{1,3}",
    r" ?\p{N}+",
    r" ?[^\s\p{L}\p{N}]+",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    r"\s*[\r\n]",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
)

_EACH = "|".join(map(re.escape, (*WORDS, *OTHERS)))
_KNOWN = re.compile(rf"(?:{_EACH})(?:\|(?:{_EACH}))*")


def ends_words(rust: RustTokenizer) -> bool:
    """Whether a piece begins wherever a WORD_END between added tokens begins, by what the tokenizer says of itself."""
    try:
        normalizer, steps = part_state(rust.normalizer), list(_steps(part_state(rust.pre_tokenizer)))
    except Exception:  # a part that a class of transformers brings as Python code cannot be looked into
        return False
    return (
        type(rust.model).__name__ == "BPE"
        and not rust.model.dropout
        and normalizer.get("type") in (None, "NFC")
        and all(map(_is_known, steps))
        and not any(step["type"] == "ByteLevel" for step in steps[:-1])  # it writes spaces as letters
        and any(map(_begins_words, steps))
        and not any(_crosses(token.content) or token.lstrip or token.rstrip for token in _found_late(rust))
    )


def _steps(pre_tokenizer: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if pre_tokenizer.get("type") != "Sequence":
        yield pre_tokenizer
        return
    for step in pre_tokenizer["pretokenizers"]:
        yield from _steps(step)


def _is_known(step: Mapping[str, Any]) -> bool:
    match step:
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}:
            return _KNOWN.fullmatch(_spelled(regex)) is not None
        case {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Removed", "invert": True}:
            return _KNOWN.fullmatch(_spelled(regex)) is not None and _begins_words(step)
        case {"type": "ByteLevel", "add_prefix_space": False} | {"type": "Digits"}:
            return True
        case _:
            return False


def _begins_words(step: Mapping[str, Any]) -> bool:
    """Of a known step."""
    if step["type"] == "Split":
        regex = f"|{_spelled(step['pattern']['Regex'])}|"
        return any(f"|{word}|" in regex for word in WORDS)
    return step["type"] == "ByteLevel" and bool(step["use_regex"])


def _spelled(regex: str) -> str:
    """Some write the line's ends as they are."""
    return regex.replace("\r", r"\r").replace("\n", r"\n")


def _found_late(rust: RustTokenizer) -> Iterator[AddedToken]:
    """Those that are looked for in normalized text, when the others were found."""
    return (token for token in rust.get_added_tokens_decoder().values() if token.normalized)


def _crosses(content: str) -> bool:
    """Whether a WORD_END may begin within this token."""
    return WORD_END.search(f"{normalize('NFC', content)}|") is not None


__all__ = ("OTHERS", "WORDS", "WORD_END", "ends_words")
