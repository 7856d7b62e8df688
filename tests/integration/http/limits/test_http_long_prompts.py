"""Prompts of many megabytes: refused before they are encoded, and nothing else waits for them."""

from collections.abc import Iterator

import pytest

from adapters.fake.options import FakeOptions
from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.hf_tokenizer import HfTokenizer
from adapters.tokenizers.library import load_tokenizer, rust_tokenizer
from adapters.tokenizers.loader import HfTokenizerLoader
from adapters.tokenizers.text_codec import TextCodec
from application.ports.tokenizer import Tokenizer
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.processes.counting_rust import CountingRust

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
CONTEXT = 1024
SENTENCE = "The code of Alice is 48213, and the quick brown fox jumps over the lazy dog. "


class _Counted:
    """A TokenizerLoader: the embedded model's tokenizer on a backend that counts."""

    def __init__(self) -> None:
        self._source = ModelSource(ModelId("demo"), str(embedded_folder(EMBEDDED_IDS[0])))
        python = load_tokenizer(self._source.path)
        rust = rust_tokenizer(python)
        assert rust is not None
        self.rust = CountingRust(rust)
        self._codec = TextCodec(python, self.rust)  # type: ignore[arg-type]

    def load(self, source: ModelSource) -> Tokenizer:
        plain = HfTokenizerLoader().load(self._source)
        assert isinstance(plain, HfTokenizer)
        made = HfTokenizer(
            self._codec,
            eos_token_ids=plain.eos_token_ids,
            template=plain._template,
            token_bytes=plain._token_bytes,
            output=plain._output.output,
        )
        self.rust.calls.clear()
        self.rust.longest_chars = 0
        return made


@pytest.fixture(scope="module")
def counted() -> _Counted:
    return _Counted()


@pytest.fixture
def service(counted: _Counted) -> Iterator[FakeService]:
    with fake_service(FakeOptions(context_length=CONTEXT, vocab_size=5000), tokenizers=counted) as running:
        yield running


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_prompt_whose_length_proves_that_it_cannot_fit_is_not_encoded(
    service: FakeService, counted: _Counted, path: str
) -> None:
    text = SENTENCE * 600
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    error = service.client.post(path, json=body).json()["error"]
    assert counted.rust.longest_chars == 0, "a text was encoded"
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == ("messages" if path == CHAT else "prompt")
    assert "at least" in error["message"]
    assert str(CONTEXT) in error["message"]


def test_a_prompt_that_may_fit_is_encoded_once_and_counted_exactly(service: FakeService, counted: _Counted) -> None:
    text = SENTENCE * 200
    error = service.client.post(CHAT, json={"messages": [{"role": "user", "content": text}]}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "at least" not in error["message"]
    assert counted.rust.calls.total() == 1, "fork points were looked for in a prompt that is refused"
