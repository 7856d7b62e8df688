"""Encoding lets other threads run, and takes no more from the library than is wanted."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.library import load_tokenizer, rust_tokenizer
from adapters.tokenizers.text_codec import TextCodec

TEXT = "The code of Alice is 48213, and the quick brown fox jumps over the lazy dog. " * 2000
NUM_TRIES = 50


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    python = load_tokenizer(str(embedded_folder(EMBEDDED_IDS[0])))
    return TextCodec(python, rust_tokenizer(python))


@contextmanager
def _counting() -> Iterator[Callable[[], int]]:
    """A thread that counts, and gets the interpreter only from whoever lets go of it: nobody is interrupted."""
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
        # Whoever began to wait for the interpreter before, waits by the earlier interval and interrupts once.
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
