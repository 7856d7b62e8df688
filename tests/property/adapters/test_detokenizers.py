"""Streamed text, joined, is the tokenizer's own decoding, for every decoding family and any tokens."""

import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.detokenizer import IncrementalDetokenizer
from adapters.tokenizers.hf_tokenizer import HfTokenizer
from adapters.tokenizers.library import load_tokenizer
from adapters.tokenizers.loader import HfTokenizerLoader
from adapters.tokenizers.text_codec import TextCodec
from application.ports.tokenizer import Detokenizer, Tokenizer
from domain.models.model_card import ModelSource
from domain.output.output_format import choose_format
from tests.support.mlx.tiny_tokenizers import FAMILIES, load_folder, write_folder

_BYTE_FALLBACK = {"llama_2", "gemma"}
_TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet=" \n\t.,aé漢😀'▁Ġ", max_size=40),
    st.lists(
        st.sampled_from(["The code", " of", "  Alice", "\n\n", "é", "😀", "<|im_end|>", "don't"]), max_size=12
    ).map("".join),
)


class _Family:
    """A tokenizer with its reference: what the library itself decodes."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.tokenizer: Tokenizer = load_folder(folder)
        self._library = load_tokenizer(str(folder))

    def decode(self, ids: Sequence[int]) -> str:
        return self._library.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module", params=[*FAMILIES, *EMBEDDED_IDS])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Family:
    if request.param in EMBEDDED_IDS:
        folder = embedded_folder(request.param)
        assert folder is not None
        return _Family(request.param, folder)
    return _Family(request.param, write_folder(tmp_path_factory.mktemp(request.param), FAMILIES[request.param]()))


def _streamed(detokenizer: Detokenizer, ids: Sequence[int]) -> str:
    return "".join(detokenizer.feed(token_id) for token_id in ids) + detokenizer.flush()


@given(text=_TEXTS)
@settings(deadline=None)
def test_any_texts_tokens_stream_to_their_full_decoding(family: _Family, text: str) -> None:
    ids = family.tokenizer.encode(text).token_ids
    assert _streamed(family.tokenizer.detokenizer(), ids) == family.decode(ids)


@given(data=st.data())
@settings(deadline=None)
def test_any_tokens_stream_to_their_full_decoding(family: _Family, data: st.DataObject) -> None:
    """Random ids: half characters, special tokens, ids beyond the vocabulary (rows that pad an embedding)."""
    ids = data.draw(st.lists(st.integers(0, family.tokenizer.vocab_size + 3), max_size=40))
    streamed, decoded = _streamed(family.tokenizer.detokenizer(), ids), family.decode(ids)
    if family.name in _BYTE_FALLBACK and "\ufffd" in decoded:
        # the library gives up on a whole run of bytes; the stream only on those that formed no character
        kept = iter(streamed)
        assert "\ufffd" in streamed
        assert all(character in kept for character in decoded if character != "\ufffd")
        return
    assert streamed == decoded


@given(text=_TEXTS, continued=_TEXTS)
@settings(deadline=None)
def test_text_after_a_prompt_is_decoded_as_its_continuation(family: _Family, text: str, continued: str) -> None:
    prompt = family.tokenizer.encode(text).token_ids
    ids = family.tokenizer.encode(continued).token_ids
    before, whole = family.decode(prompt), family.decode([*prompt, *ids])
    if whole.startswith(before):
        assert _streamed(family.tokenizer.detokenizer(prompt), ids) == whole[len(before) :]


@given(ids=st.lists(st.integers(0, 4095), min_size=1, max_size=60), cut=st.integers(0, 60))
@settings(deadline=None)
def test_a_stream_cut_anywhere_continues_where_it_was(ids: list[int], cut: int) -> None:
    """A character that began in the prompt is completed by what follows."""
    tokenizer = _demo()
    whole = _streamed(tokenizer.detokenizer(), ids)
    first = tokenizer.detokenizer()
    shown = "".join(first.feed(token_id) for token_id in ids[:cut])
    assert shown + _streamed(tokenizer.detokenizer(ids[:cut]), ids[cut:]) == whole


@functools.cache
def _demo() -> Tokenizer:
    return HfTokenizerLoader().load(ModelSource(EMBEDDED_IDS[0], str(embedded_folder(EMBEDDED_IDS[0]))))


def test_a_character_appears_once_and_when_it_is_complete(family: _Family) -> None:
    text = "a😀b"
    ids = family.tokenizer.encode(text).token_ids
    detokenizer = family.tokenizer.detokenizer()
    pieces = [detokenizer.feed(token_id) for token_id in ids]
    if "😀" in family.decode(ids):
        assert sum("😀" in piece for piece in pieces) == 1
        assert all("\ufffd" not in piece for piece in pieces)


def test_lone_bytes_become_replacement_characters_at_the_end() -> None:
    tokenizer = _demo()
    ids = tokenizer.encode("😀").token_ids
    assert len(ids) > 1, "the test needs a character that is split over tokens"
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.feed(token_id) for token_id in ids[:-1]] == [""] * (len(ids) - 1)
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_byte_fallback_shows_the_complete_characters_of_a_broken_run(tmp_path: Path) -> None:
    tokenizer = load_folder(write_folder(tmp_path, FAMILIES["gemma"]()))
    emoji = tokenizer.encode("😀").token_ids
    assert len(emoji) == 4
    assert _streamed(tokenizer.detokenizer(), [*emoji, emoji[0]]) == "😀\ufffd"


def test_a_leading_space_is_kept_where_the_vocabulary_says_so() -> None:
    tokenizer = _demo()
    assert _streamed(tokenizer.detokenizer(), tokenizer.encode(" Paris").token_ids) == " Paris"


def test_text_of_a_long_stream_is_taken_in_bounded_windows(tmp_path: Path) -> None:
    tokenizer = load_folder(write_folder(tmp_path, FAMILIES["word_piece"]()))
    seen: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        seen.append(len(ids))
        return tokenizer.decode(ids)

    detokenizer = IncrementalDetokenizer(decode, frozenset())
    for token_id in tokenizer.encode("the quick brown fox " * 50).token_ids:
        detokenizer.feed(token_id)
    assert max(seen) <= 16  # eight of context, eight pending


def test_bytes_without_end_are_shown_as_they_settle() -> None:
    library = load_tokenizer(str(embedded_folder(EMBEDDED_IDS[0])))
    codec = TextCodec(library, None)
    tokenizer = HfTokenizer(
        codec, eos_token_ids=frozenset(), template=None, token_bytes=None, output=choose_format("", ())
    )
    first, *rest = tokenizer.encode("😀").token_ids
    ids = [*[first] * 30, *rest, *tokenizer.encode(" fine").token_ids]
    detokenizer = tokenizer.detokenizer()
    shown = "".join(detokenizer.feed(token_id) for token_id in ids[:30])
    assert 20 < len(shown) < 30
    assert shown + _streamed(detokenizer, ids[30:]) == "\ufffd" * 29 + "😀 fine"
