"""Encoding lets other threads run, and takes no more from the library than is wanted."""

import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.library import load_tokenizer, rust_tokenizer
from adapters.tokenizers.text_codec import TextCodec
from adapters.tokenizers.token_bytes import MAX_TOKEN_CHARS, most_chars
from application.ports.tokenizer import PromptTooLong

TEXT = "The code of Alice is 48213, and the quick brown fox jumps over the lazy dog. " * 2000
NUM_TRIES = 50


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    python = load_tokenizer(str(embedded_folder(EMBEDDED_IDS[0])))
    return TextCodec(python, rust_tokenizer(python))


@contextmanager
def _counting() -> Iterator[Callable[[], int]]:
    """A thread that counts, and gets the interpreter only when another thread releases it: none is interrupted."""
    count, ended = 0, False

    def run() -> None:
        nonlocal count
        while not ended:
            count += 1
            time.sleep(0)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=run)
    sys.setswitchinterval(60)
    thread.start()
    try:
        # A thread that began to wait for the interpreter before waits by the earlier interval and interrupts once.
        time.sleep(2 * before)
        yield lambda: count
    finally:
        sys.setswitchinterval(before)
        ended = True
        thread.join()


def _lets_others_run(work: Callable[[], object]) -> bool:
    with _counting() as count:
        for _ in range(NUM_TRIES):
            at = count()
            work()
            if count() > at:
                return True
    return False


def test_the_counting_thread_stands_still_while_the_interpreter_is_held() -> None:
    assert not _lets_others_run(lambda: sum(range(10_000)))


def test_other_threads_run_while_a_text_is_encoded(codec: TextCodec) -> None:
    assert _lets_others_run(lambda: codec.encode(TEXT))


def test_other_threads_run_while_tokens_are_decoded(codec: TextCodec) -> None:
    ids = codec.encode(TEXT)
    assert _lets_others_run(lambda: codec.decode(ids, skip_special=False))


class TestTheLongestToken:
    """A text is refused unencoded where even the longest tokens would be too many."""

    def test_is_known_where_every_byte_of_a_text_is_in_a_token(self, codec: TextCodec) -> None:
        assert codec.max_token_chars == len("+" + "-" * 32)

    def test_covers_no_more_characters_where_letters_are_composed(self) -> None:
        python = load_tokenizer(str(embedded_folder(EMBEDDED_IDS[0])))
        rust = rust_tokenizer(python)
        assert rust is not None
        rust.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        composing = TextCodec(python, rust)
        assert composing.max_token_chars == 2 * 33
        for text in ("=" * 640, "ΐ" * 40, "Ǖ" * 40, "ᾂ" * 40, "K" * 40, "한" * 40):
            decomposed = unicodedata.normalize("NFD", text)
            with pytest.raises(PromptTooLong) as refused:
                composing.encode(decomposed, max_tokens=0)
            least = -(-len(decomposed) // composing.max_token_chars)
            assert (refused.value.num_tokens, refused.value.is_exact) == (least, False)
            assert least <= len(composing.encode(decomposed))

    @pytest.mark.parametrize(
        "change",
        [
            lambda rust: rust.add_tokens([AddedToken("<wide>", rstrip=True)]),
            lambda rust: setattr(rust, "normalizer", normalizers.StripAccents()),
            lambda rust: setattr(rust, "pre_tokenizer", pre_tokenizers.Split(" ", "removed")),
            lambda rust: setattr(rust, "model", models.BPE(unk_token="?")),
        ],
        ids=["strips", "normalizes", "splits", "unknown"],
    )
    def test_is_not_derived_where_a_text_may_lose_characters(self, change: Callable[[Any], object]) -> None:
        python = load_tokenizer(str(embedded_folder(EMBEDDED_IDS[0])))
        rust = rust_tokenizer(python)
        assert rust is not None
        change(rust)
        vocabulary: Any = rust
        assert most_chars(rust, vocabulary.get_vocab()) == MAX_TOKEN_CHARS
