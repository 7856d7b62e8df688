"""A text encoded in parts has the tokens of the whole, for every family of tokenizers, and nobody meets what
another has sent."""

import re
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from adapters.tokenizers.text_codec import EncodedParts, TextCuts, longest_of
from domain.id_row import IdRow
from tests.support.mlx.tiny_tokenizers import FAMILIES

PIECES = st.sampled_from(
    [
        "<|im_start|>",
        "<|im_end|>",
        "</s>",
        "<s>",
        "<|im_",
        "start|>",
        " ",
        "  ",
        "\n",
        "fox",
        " jumps",
        "naïve",
        "漢",
        "😀",
        "a",
    ]
)


@cache
def tokenizer_of(family: str) -> Tokenizer:
    return FAMILIES[family]()


def cuts_of(tokenizer: Tokenizer) -> TextCuts:
    cuts = TextCuts.of(tokenizer)  # type: ignore[arg-type]
    assert cuts is not None
    return cuts


def encoded(tokenizer: Tokenizer, texts: list[str]) -> list[IdRow]:
    return [IdRow(one.ids) for one in tokenizer.encode_batch(texts, add_special_tokens=False)]


@pytest.mark.parametrize("family", FAMILIES)
@given(pieces=st.lists(PIECES, max_size=40), part_chars=st.integers(0, 30))
def test_parts_give_what_the_whole_gives(family: str, pieces: list[str], part_chars: int):
    tokenizer, text = tokenizer_of(family), "".join(pieces)
    [whole] = encoded(tokenizer, [text])
    texts = list(cuts_of(tokenizer).parts(text, part_chars))
    assert "".join(texts) == text
    parts = EncodedParts(lambda missing: encoded(tokenizer, missing)).of(texts, "")
    assert IdRow.joined(parts) == whole


@given(pieces=st.lists(PIECES, max_size=40), more=st.lists(PIECES, max_size=5))
def test_texts_that_begin_alike_have_the_same_parts(pieces: list[str], more: list[str]):
    cuts, text = cuts_of(tokenizer_of("byte_level")), "".join(pieces)
    before, after = list(cuts.parts(text, 10)), list(cuts.parts(text + "<|im_end|>" + "".join(more), 10))
    assert after[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize("option", ["lstrip", "rstrip", "single_word", "normalized"])
def test_tokens_that_see_over_a_cut_begin_no_part(option: str):
    tokenizer = FAMILIES["gemma"]()
    assert "a<|im_start|>b" in "".join(cuts_of(tokenizer).parts("a<|im_start|>b", 1))
    tokenizer.add_tokens(  # pyright: ignore[reportUnknownMemberType]
        [AddedToken("<wide>", **{"normalized": False, option: True})]
    )  # type: ignore[arg-type]
    cuts = TextCuts.of(tokenizer)  # type: ignore[arg-type]
    if option == "single_word":
        assert cuts is None
    else:
        assert cuts is not None
        assert list(cuts.parts("word  <wide>  word<|im_end|>", 1)) == ["word  <wide>  word", "<|im_end|>"]


def test_a_token_within_a_longer_one_begins_no_part():
    tokenizer = FAMILIES["byte_level"]()
    tokenizer.add_special_tokens(["<s><|im_end|>"])  # pyright: ignore[reportUnknownMemberType]
    assert list(cuts_of(tokenizer).parts("a<s><|im_end|>b<|im_end|>c", 1)) == ["a", "<s><|im_end|>b", "<|im_end|>c"]


@given(
    tokens=st.sets(st.text("ab<|", min_size=1, max_size=5), min_size=1, max_size=12), text=st.text("ab<|", max_size=40)
)
def test_the_longest_token_is_found_wherever_one_begins(tokens: set[str], text: str):
    one_by_one = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
    found = [match.span() for match in re.finditer(longest_of(tokens), text)]
    assert found == [match.span() for match in re.finditer(one_by_one, text)]


def test_thousands_of_tokens_that_begin_alike_are_not_tried_one_by_one():
    """Each character of a hostile text would cost a third of a millisecond, with the interpreter held."""
    assert longest_of(["ab", "abc", "ad", "x"]) == "(?:a(?:b(?:c)?|d)|x)"
    widest = max(len(part.split("|")) for part in re.split(r"\(\?:|\)", longest_of(f"<u{n}>" for n in range(6_000))))
    assert widest <= 11, "ten digits, and the end"


class Counting:
    """Counts what is encoded."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> list[IdRow]:
        self.texts += texts
        return encoded(tokenizer_of("byte_level"), texts)


END = "goes on in the next turn"
"""The last part of a text, which is not kept."""


def test_only_the_last_part_is_encoded_again():
    counting = Counting()
    parts = EncodedParts(counting)
    first = parts.of(["one", "two", "one", END], "")
    assert counting.texts == ["one", "two", END]
    again = parts.of(["one", "two", "three", END], "")
    assert counting.texts == ["one", "two", END, "three", END]
    assert again[:2] == first[:2]


def test_nobody_meets_what_another_has_sent():
    counting = Counting()
    parts = EncodedParts(counting)
    parts.of(["secret", END], "one")
    parts.of(["secret", END], "other")
    assert counting.texts == ["secret", END] * 2


def test_what_is_kept_has_a_bound_and_the_last_used_stay():
    counting = Counting()
    parts = EncodedParts(counting, max_tokens=40)
    parts.of(["fox 0", END], "")
    for number in range(1, 30):
        parts.of([f"fox {number}", "fox 0", END], "")
        assert 0 < parts.num_tokens <= 40
    assert counting.texts.count("fox 0") == 1
    parts.of(["fox 1", END], "")
    assert counting.texts.count("fox 1") == 2
    long, _ = parts.of(["fox " * 200, END], "")
    assert len(long) > 40
    assert parts.num_tokens <= 40


@pytest.mark.parametrize("num_parts", [1, 100])
def test_one_long_text_leaves_others_half_of_the_room(num_parts: int):
    counting = Counting()
    parts = EncodedParts(counting, max_tokens=400)
    others = [f"fox {number}" for number in range(15)]
    parts.of([*others, END], "another")
    assert 150 < parts.num_tokens <= 200
    long = [f"{number} " + "fox " * (800 // num_parts) for number in range(num_parts)]
    parts.of([*long, END], "")
    counting.texts.clear()
    parts.of([*others, END], "another")
    assert counting.texts == [END]
    parts.of([*long, END], "")
    assert (long[0] not in counting.texts) == (num_parts > 1)


def test_what_is_encoded_to_nothing_has_a_bound_too():
    """A tokenizer may drop what it does not know, such as a client's first 2,048 characters."""
    knows_one = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    parts = EncodedParts(lambda missing: encoded(knows_one, missing), max_tokens=40)
    for number in range(20):
        part, _ = parts.of([f"{number}", END], "")
        assert len(part) == 0
        assert 0 < parts.num_tokens <= 40
