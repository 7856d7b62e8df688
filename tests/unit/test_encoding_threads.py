"""New parts of a long text are encoded side by side, by no more threads than were granted, and told in their order."""

import threading
from typing import Any, cast

import pytest

from adapters.huggingface.embedded_models import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers import encoded_parts
from adapters.tokenizers.encoding_threads import BATCH_CHARS, work_side_by_side
from adapters.tokenizers.library import load_tokenizer, rust_tokenizer
from adapters.tokenizers.text_codec import TextCodec
from application.settings import Settings
from domain.model_card import ModelSource
from interfaces.composition import backends
from tests.support.counting_rust import CountingRust
from tests.support.patience import PATIENCE_S

TEXT = "".join(f"The code of Alice is {n}, and the quick brown fox jumps over the lazy dog. " for n in range(3_000))


def test_as_many_threads_as_granted_encode_at_once() -> None:
    """Each waits for the others, so fewer would never be done; none is left behind."""
    barrier, seen = threading.Barrier(3), set[str]()

    def encode(texts: list[str]) -> list[str]:
        barrier.wait(PATIENCE_S)
        seen.add(threading.current_thread().name)
        return [text[:1] for text in texts]

    texts = [digit * (BATCH_CHARS // 2) for digit in "0123456789ab"]
    assert work_side_by_side(encode, texts, 3) == list("0123456789ab")
    assert len(seen) == 3
    assert seen.isdisjoint(thread.name for thread in threading.enumerate())


@pytest.mark.parametrize(("num_texts", "num_threads"), [(1, 4), (2, 4), (30, 1), (0, 4)])
def test_who_asks_encodes_what_is_little_or_may_not_be_shared(num_texts: int, num_threads: int) -> None:
    seen: list[threading.Thread] = []

    def encode(texts: list[str]) -> list[str]:
        seen.append(threading.current_thread())
        return texts

    texts = ["a" * (BATCH_CHARS // 2)] * num_texts
    assert work_side_by_side(encode, texts, num_threads) == texts
    assert seen == [threading.current_thread()]


def test_what_a_thread_raises_is_raised() -> None:
    def encode(texts: list[str]) -> list[str]:
        raise MemoryError

    with pytest.raises(MemoryError):
        work_side_by_side(encode, ["a" * BATCH_CHARS] * 3, 2)


def test_one_long_text_is_encoded_by_threads_and_only_its_end_again() -> None:
    python = load_tokenizer(str(embedded_folder(EMBEDDED_IDS[0])))
    rust = rust_tokenizer(python)
    assert rust is not None
    counting = CountingRust(rust)
    codec = TextCodec(python, cast(Any, counting), num_threads=2)
    counting.calls.clear()
    counting.num_chars = counting.longest_chars = 0
    encoded = codec.encode(TEXT)
    [whole] = rust.encode_batch([TEXT], add_special_tokens=False)
    assert encoded.ids == whole.ids
    assert encoded.spans is not None
    assert [encoded.spans[at] for at in range(0, len(whole), 97)] == [
        whole.token_to_chars(at) for at in range(0, len(whole), 97)
    ]
    assert counting.num_chars == len(TEXT), "a character was encoded twice, or left out"
    assert counting.calls["encode_batch"] == -(-len(TEXT) // BATCH_CHARS)
    assert counting.longest_chars < 3_000
    counting.num_chars = 0
    assert codec.encode(TEXT + "And what is the code of Bob?").ids[: len(whole) - 8] == whole.ids[:-8]
    assert counting.num_chars < 3_000


def test_a_server_grants_half_of_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    granted: list[int] = []

    def note(encode: Any, texts: list[str], num_threads: int) -> Any:
        granted.append(num_threads)
        return work_side_by_side(encode, texts, num_threads)

    monkeypatch.setattr(backends, "usable_cpus", lambda: 8)
    monkeypatch.setattr(encoded_parts, "work_side_by_side", note)
    id = EMBEDDED_IDS[0]
    backends.tokenizers_of(Settings()).load(ModelSource(id, str(embedded_folder(id)))).encode(TEXT)
    assert set(granted) == {4}
