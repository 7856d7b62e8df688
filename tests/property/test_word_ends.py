"""A text cut where words end has the tokens and the spans of the whole, with the expressions of the known families; and
a tokenizer of which that is not certain is not cut there."""

import json
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from adapters.huggingface.embedded_models import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.encoded_parts import EncodedParts, PartSpans
from adapters.tokenizers.text_cuts import TextCuts
from adapters.tokenizers.word_ends import OTHERS, WORD_END, ends_words
from adapters.tokenizers.word_ends import WORDS as TAKE_LETTERS
from tests.support.tiny_tokenizers import FAMILIES

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
MARKS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ODD = r"[^\r\n\p{L}\p{N}]?"
LLAMA_3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + MARKS
REGEXES = {
    "llama_3": [LLAMA_3],
    "qwen_2": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + MARKS],
    "qwen_3_5": [
        CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + SPACES,
    ],
    "deepseek_3": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    ],
    "gpt_4o": [
        f"{ODD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{ODD}{UPPER}+{LOWER}*{CONTRACTIONS}?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES,
    ],
    "tekken": [f"{ODD}{UPPER}*{LOWER}+|{ODD}{UPPER}+{LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + SPACES],
}
TEXT = [
    "The quick brown fox, jumps. over: the lazy dog. don't stop! it's 48213, we'll see.",
    'def main(self, value): return {"key": "value", "list": [1, 2, 345]}  # x = a.b.c',
    "naïve café über straße, 漢字，かな。カナ、가나 다라 Слово это слово, ещё.",
    "three   spaces\n\nand lines\n\tand tabs.\n\n\n    code\r\n  \n end",
] * 8
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
WORDS = "the don't we'LL 's x'ſ Word naïve 2345 漢字 かな か\u3099 가나 \u1100\u1161 Слово e\u0301 👩\u200d💻 // l.x"
MARKUP = "<|im_start|> <|im_end|> <|im_ end|>"
CHARACTERS = "aB1²½İªßйー\u11a8😀\ufe0f\u0301\u0338_-,.:\"'/{，。、 \n\t\u00a0\u3000\u2028\ufeff\0"
RUNS = ["  ", "\n\n", "\r\n", "foo bar", "a, b"]
ALL_PIECES = [*WORDS.split(" "), *MARKUP.split(" "), *CHARACTERS, *RUNS]
PIECES = st.sampled_from(ALL_PIECES)


def steps_of(name: str) -> Any:
    if name == "gpt_2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    splits: list[Any] = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in REGEXES[name]]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """Trained without pieces, so that there are merges over what is between words."""
    if name in EMBEDDED_IDS:
        return Tokenizer.from_file(str(embedded_folder(name) / "tokenizer.json"))  # type: ignore[arg-type]
    return made(steps_of(name), normalizer=normalizers.NFC() if name.startswith("qwen") else None)


def made(
    pre_tokenizer: Any,
    *,
    normalizer: Any = None,
    processor: Any = None,
    added: tuple[AddedToken, ...] = (),
    model: Any = None,
) -> Tokenizer:
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if processor is not None:
        tokenizer.post_processor = processor
    special = [AddedToken(token, special=True, normalized=False) for token in SPECIAL]
    tokenizer.add_tokens([*special, *added])  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


def cuts_of(tokenizer: Tokenizer) -> TextCuts:
    cuts = TextCuts.of(tokenizer)  # type: ignore[arg-type]
    assert cuts is not None
    return cuts


def parts_of(tokenizer: Tokenizer, text: str = "one two, three") -> list[str]:
    return list(cuts_of(tokenizer).parts(text, 1))


def check_parts(tokenizer: Tokenizer, text: str, part_chars: int) -> None:
    def encode(texts: list[str]) -> list[Any]:
        return tokenizer.encode_batch(texts, add_special_tokens=False)

    [whole] = encode([text])
    texts = list(cuts_of(tokenizer).parts(text, part_chars))
    assert "".join(texts) == text
    parts = EncodedParts(encode).of(texts, "")
    spans = PartSpans(parts)
    assert [id for part in parts for id in part.ids] == whole.ids
    assert [spans[at] for at in range(len(spans))] == [whole.token_to_chars(at) for at in range(len(whole))]


NAMES = ["gpt_2", *REGEXES, *EMBEDDED_IDS]


@pytest.mark.parametrize("name", NAMES)
@given(pieces=st.lists(PIECES, max_size=60), part_chars=st.integers(1, 8))
def test_parts_give_what_the_whole_gives(name: str, pieces: list[str], part_chars: int):
    check_parts(tokenizer_of(name), "".join(pieces), part_chars)


@pytest.mark.parametrize("letters", TAKE_LETTERS)
def test_pieces_are_the_same_whichever_known_alternative_stands_beside_one_that_takes_letters(letters: str):
    """Not only as the families above have them."""
    rng = Random(1)
    for other in (*OTHERS, *TAKE_LETTERS):
        text = "".join([*TEXT[:4], *(rng.choice(ALL_PIECES) for _ in range(200))])
        parts = list(TextCuts(None, frozenset(), WORD_END).parts(text, 1))
        for regex in (f"{other}|{letters}", f"{letters}|{other}"):
            steps = split(regex)
            whole = [piece for piece, _ in steps.pre_tokenize_str(text)]
            assert [piece for part in parts for piece, _ in steps.pre_tokenize_str(part)] == whole


@pytest.mark.parametrize("name", NAMES)
def test_a_text_without_added_tokens_is_cut(name: str):
    assert parts_of(tokenizer_of(name)) == ["one", " two", ", three"]
    assert len(parts_of(tokenizer_of(name), "漢字，かな。가나 다라, Слово это")) == 6


def test_merges_reach_over_what_is_cut():
    """Without pieces the same merges take other tokens, so that a wrong cut would be seen."""
    tokenizer = made(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    text = TEXT[1]
    whole, *parts = tokenizer.encode_batch([text, *TextCuts(None, frozenset(), WORD_END).parts(text, 1)])
    assert [id for part in parts for id in part.ids] != whole.ids
    assert not ends_words(tokenizer)  # type: ignore[arg-type]


def test_a_message_is_cut_as_it_was_whatever_has_changed_before_it():
    cuts = cuts_of(tokenizer_of("llama_3"))
    message = "<|im_start|>" + "some words and more " * 40
    one, other = (list(cuts.parts(f"{system} and so on" + message, 200)) for system in ("a" * 300, "b" * 411))
    at = -1 - [part[:4] for part in reversed(one)].index("<|im")
    assert one[at:] == other[at:]
    assert "".join(one[at:]) == message
    assert len(one[at:]) > 3


def split(regex: str, behavior: str = "isolated", *, invert: bool = False) -> Any:
    step = pre_tokenizers.Split(Regex(regex), behavior, invert)
    return pre_tokenizers.Sequence([step, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
UNCERTAIN: dict[str, dict[str, Any]] = {
    "a space before the text": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)},
    "no pieces": {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)},
    "pieces of two words": {"pre_tokenizer": split(r"\p{L}+ \p{L}+|" + LLAMA_3)},
    "an alternative that looks back": {"pre_tokenizer": split(r"(?<=\p{L}) \p{L}+|" + LLAMA_3)},
    "an alternative that looks ahead": {"pre_tokenizer": split(r"\p{L}+(?= )|" + LLAMA_3)},
    "the end of the text": {"pre_tokenizer": split(LLAMA_3 + "|\\s+$")},
    "a flag": {"pre_tokenizer": split("(?i)" + LLAMA_3)},
    "spaces written as letters": {
        "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(False, use_regex=False), split(LLAMA_3)])
    },
    "no letters": {"pre_tokenizer": split(r"\p{N}{1,3}" + MARKS)},
    "small letters only": {"pre_tokenizer": split(f"{ODD}{UPPER}*{LOWER}+" + MARKS)},
    "what is between pieces": {"pre_tokenizer": split(LLAMA_3, "merged_with_next")},
    "words as separators": {"pre_tokenizer": split(LLAMA_3, "removed")},
    "marks with the word before": {
        "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_previous"), BYTES])
    },
    "spaces of its own": {"pre_tokenizer": pre_tokenizers.Metaspace()},
    "no pre-tokenizer": {"pre_tokenizer": None},
    "a normalizer": {"pre_tokenizer": BYTES, "normalizer": normalizers.Lowercase()},
    "chance": {"pre_tokenizer": BYTES, "model": models.BPE(dropout=0.5)},
    "spans of a first token": {
        "pre_tokenizer": BYTES,
        "processor": processors.ByteLevel(add_prefix_space=True, trim_offsets=True),
    },
    "a token over a cut": {"pre_tokenizer": BYTES, "added": (AddedToken("ne tw", normalized=True),)},
    "a composed token over a cut": {
        "pre_tokenizer": BYTES,
        "normalizer": normalizers.NFC(),
        "added": (AddedToken("o\u0308 x", normalized=True),),
    },
    "a token up to a space": {"pre_tokenizer": BYTES, "added": (AddedToken("one", normalized=True, rstrip=True),)},
}  # fmt: skip


@pytest.mark.parametrize("why", UNCERTAIN)
def test_where_words_may_end_elsewhere_there_is_no_cut(why: str):
    tokenizer = made(**UNCERTAIN[why])
    cuts = TextCuts.of(tokenizer)  # type: ignore[arg-type]
    assert cuts is None or list(cuts.parts("one two, three", 1)) == ["one two, three"]


@pytest.mark.parametrize("family", ["llama_2", "gemma", "metaspace", "word_piece"])
def test_other_families_are_cut_at_added_tokens_only(family: str):
    assert parts_of(FAMILIES[family](), "one two, x<|im_end|>four five") == ["one two, x", "<|im_end|>four five"]


BESIDE = ["to go", "go", " to go", "x", "x|x", " ", "  ", "\n", ",", "a b", "<s>"]


@pytest.mark.parametrize("options", [{}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
@given(pieces=st.lists(st.sampled_from(BESIDE), max_size=30))
def test_added_tokens_are_found_beside_cuts(options: dict[str, bool], pieces: list[str]):
    check_parts(with_added(json.dumps(options)), "".join(pieces), 1)


@pytest.mark.parametrize("options", [{}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}])
def test_no_cut_is_within_an_added_token_or_right_behind_it(options: dict[str, bool]):
    second = [", to go, x|x"] if options else [", ", "to go, x|x"]
    assert parts_of(with_added(json.dumps(options)), "one, to go, x|x a c") == ["one", *second, " a", " c"]


@cache
def with_added(options: str) -> Tokenizer:
    early = [AddedToken(text, normalized=False, **json.loads(options)) for text in ("to go", "go", " b", "\n")]
    late = [AddedToken(text, normalized=True) for text in ("x|x", "  ")]
    return made(pre_tokenizers.ByteLevel(add_prefix_space=False), added=(*early, *late))
