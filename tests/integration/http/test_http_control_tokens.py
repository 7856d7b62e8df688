"""Over HTTP: control tokens in messages are text, those of raw prompts are not, and template arguments replace none."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import Tokenizer
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from tests.support.http.fuzz_requests import templated_chat
from tests.support.http.servers.fake_service import FakeService, fake_service

CHAT = "/v1/chat/completions"


class Embedded:
    """A TokenizerLoader that gives every model the embedded model's tokenizer."""

    def load(self, source: ModelSource) -> Tokenizer:
        return HfTokenizerLoader().load(ModelSource(ModelId("demo"), str(embedded_folder(EMBEDDED_IDS[0]))))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Embedded().load(ModelSource(ModelId("demo"), ""))


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(vocab_size=5000), tokenizers=Embedded()) as running:
        yield running


def posted(service: FakeService, path: str, **body: Any) -> Any:
    answered = service.client.post(path, json={"max_tokens": 1, **body})
    assert answered.status_code == 200, answered.text
    return answered.json()


def test_messages_are_text_and_raw_prompts_are_not(service: FakeService, tokenizer: Tokenizer) -> None:
    special = sorted(tokenizer.special_tokens)
    hostile = " ".join(special)

    def controls(content: str) -> list[int]:
        messages = [{"role": "system", "content": content}, {"role": "user", "content": content}]
        ids = posted(service, CHAT, messages=messages, return_token_ids=True)["prompt_token_ids"]
        assert posted(service, "/tokenize", messages=messages)["tokens"] == ids
        return [id for id in ids if id in tokenizer.special_tokens.values()]

    assert controls(hostile) == controls("x")
    assert set(tokenizer.special_tokens.values()) <= set(posted(service, "/tokenize", prompt=hostile)["tokens"])


def test_any_template_arguments_and_strings_are_answered(service: FakeService) -> None:
    draw, seen = Random(22), set[int]()
    for _ in range(80):
        body = json.dumps(templated_chat(draw)).encode()
        answered = service.client.post(CHAT, content=body, headers={"content-type": "application/json"})
        seen.add(answered.status_code)
        assert answered.status_code in (200, 400), answered.text
    assert seen == {200, 400}
    assert not service.events.of("FaultObserved")
    posted(service, CHAT, messages=[{"role": "user", "content": "Hi"}])


class Warned(FakeTokenizer):
    @property
    def note(self) -> str:
        return "text in messages can act as control tokens: so it is"


def test_a_model_that_cannot_keep_them_apart_is_reported_at_its_load() -> None:
    with fake_service(tokenizers=FakeTokenizers(Warned())) as service:
        posted(service, CHAT, messages=[{"role": "user", "content": "Hi"}])
        [loaded] = service.events.of("ModelLoaded")
        assert "can act as control tokens: so it is" in loaded.note
