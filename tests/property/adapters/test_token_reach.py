"""Where a tokenizer's reach is known, no text has fewer tokens than its length divided by it."""

import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.token_bytes import token_reach
from tests.support.effort import scaled
from tests.support.mlx.tiny_tokenizers import byte_level, metaspace, sentence_piece, word_piece

MakeTokenizer = Callable[[], Tokenizer]


def _with(make: MakeTokenizer, **parts: Any) -> MakeTokenizer:
    def made() -> Tokenizer:
        tokenizer = make()
        for name, part in parts.items():
            setattr(tokenizer, name, part)
        return tokenizer

    return made


def _with_added(make: MakeTokenizer, *tokens: AddedToken) -> MakeTokenizer:
    def made() -> Tokenizer:
        tokenizer = make()
        tokenizer.add_tokens(list(tokens))
        return tokenizer

    return made


_SHORTENING = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("fox jumps", "f")])
KNOWN: dict[str, MakeTokenizer] = {
    "demo": lambda: Tokenizer.from_file(f"{embedded_folder(EMBEDDED_IDS[0])}/tokenizer.json"),
    "byte_level": byte_level,
    "llama_2": sentence_piece,
    "gemma": lambda: sentence_piece(strips=False),
    "metaspace": metaspace,
    "composing": _with(byte_level, normalizer=normalizers.NFC()),
    "shortening": _with(byte_level, normalizer=_SHORTENING),
    "long_added": _with_added(byte_level, AddedToken("<|" + "very long " * 12 + "|>", normalized=False)),
}
_DROPPING = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])


class _OwnWords:
    """A part in Python, as some classes of transformers bring one."""

    def pre_tokenize(self, text: object) -> None:
        """Splits nothing."""


UNKNOWN: dict[str, MakeTokenizer] = {
    "own_code": _with(byte_level, pre_tokenizer=pre_tokenizers.PreTokenizer.custom(_OwnWords())),  # type: ignore[attr-defined]
    "word_piece": word_piece,
    "strips": _with(byte_level, normalizer=normalizers.Strip()),
    "erases": _with(byte_level, normalizer=normalizers.Replace("a", "")),
    "pattern": _with(byte_level, normalizer=normalizers.Replace(Regex(" +"), " ")),
    "drops": _with(byte_level, pre_tokenizer=_DROPPING),
    "no_bytes": _with(byte_level, pre_tokenizer=None),
    "takes_spaces": _with_added(byte_level, AddedToken("<|end_of_it|>", rstrip=True)),
}
_PIECES = st.sampled_from(
    ["a", " ", "    ", "the quick brown fox jumps", "<s>", "<|im_start|>", "\u1f82", "α\u0313\u0300\u0345", "각", "각",
     "ﬃ", "漢字", "😀", "\u200b", "\n\n\n", "<0x41>", "▁▁▁", "Ġ", "48213", "<|" + "very long " * 12 + "|>"]
)  # fmt: skip
_TEXTS = st.one_of(st.text(max_size=80), st.lists(_PIECES, max_size=25).map("".join))
_made: dict[str, tuple[Tokenizer, int | None]] = {}


@pytest.mark.parametrize("name", KNOWN)
@settings(max_examples=scaled(150), deadline=None)
@given(text=_TEXTS)
@example(text="α\u0313\u0300\u0345" * 50)
@example(text="fox jumps" * 50)
@example(text=" " * 500)
@example(text=("<|" + "very long " * 12 + "|>") * 5)
def test_no_text_has_fewer_tokens_than_its_length_proves(name: str, text: str) -> None:
    if name not in _made:
        made = KNOWN[name]()
        _made[name] = made, token_reach(made, made.get_vocab())
    tokenizer, reach = _made[name]
    assert reach is not None
    assert len(tokenizer.encode(text, add_special_tokens=False)) * reach >= len(text)


@pytest.mark.parametrize("name", UNKNOWN)
def test_nothing_is_claimed_where_text_may_vanish(name: str) -> None:
    tokenizer = UNKNOWN[name]()
    assert token_reach(tokenizer, tokenizer.get_vocab()) is None


def test_the_reach_of_the_embedded_model_is_its_longest_token() -> None:
    tokenizer = KNOWN["demo"]()
    assert token_reach(tokenizer, tokenizer.get_vocab()) == max(len(token) for token in tokenizer.get_vocab())


def test_no_character_decomposes_into_more_than_is_assumed() -> None:
    assert max(len(unicodedata.normalize("NFD", chr(point))) for point in range(0x110000)) == 4
