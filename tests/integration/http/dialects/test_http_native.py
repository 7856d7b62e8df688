"""POST /tokenize, /detokenize and /apply-template: what a prompt is made of."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer, FakeTokenizers
from application.ports.tokenizer import EncodedPrompt, Tokenizer
from domain.models.model_card import ModelSource
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service

CHAT = {"messages": [{"role": "user", "content": "Héllo"}]}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(eos_every=0)) as running:
        yield running


def post(service: FakeService, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = service.client.post(path, json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_a_text_there_and_back(service: FakeService) -> None:
    told = post(service, "/tokenize", {"model": DEFAULT_MODEL, "prompt": "Hé!"})
    assert told["tokens"] == list("Hé!".encode())
    assert (told["count"], told["token_strs"]) == (4, None)
    assert post(service, "/detokenize", {"tokens": told["tokens"]}) == {"prompt": "Hé!", "content": "Hé!"}
    models = service.client.get("/v1/models").json()["data"]
    loaded = next(model["cairn"] for model in models if model["id"] == DEFAULT_MODEL)
    assert told["max_model_len"] == loaded["context_length"]


def test_a_text_by_llama_cpps_names(service: FakeService) -> None:
    told = post(service, "/tokenize", {"content": "Hi"})
    assert (told["tokens"], told["token_strs"]) == (list(b"Hi"), None)
    pieces = post(service, "/tokenize", {"content": "Hi", "with_pieces": True})["tokens"]
    assert pieces == [{"id": ord("H"), "piece": "H"}, {"id": ord("i"), "piece": "i"}]
    assert "content" in post(service, "/tokenize", {"content": "a", "prompt": "b"}, 400)["error"]["message"]


def test_a_chat_is_what_its_template_makes_of_it(service: FakeService) -> None:
    told = post(service, "/tokenize", {**CHAT, "add_generation_prompt": True})
    usage = post(service, "/v1/chat/completions", {**CHAT, "max_tokens": 1})["usage"]
    assert told["count"] == usage["prompt_tokens"]
    text = post(service, "/apply-template", CHAT)["prompt"]
    assert text == "<|start|>user\nHéllo<|end|>\n<|start|>assistant\n"
    assert post(service, "/detokenize", {"tokens": told["tokens"]})["prompt"] == text


def test_an_answer_to_be_continued_has_no_generation_prompt(service: FakeService) -> None:
    body = {"messages": [*CHAT["messages"], {"role": "assistant", "content": "Well"}]}
    body.update(continue_final_message=True, add_generation_prompt=False)  # type: ignore[call-overload]
    told = post(service, "/tokenize", body)
    text = post(service, "/detokenize", {"tokens": told["tokens"]})["prompt"]
    assert text == post(service, "/apply-template", body)["prompt"]
    assert post(service, "/apply-template", body)["prompt"].endswith("assistant\nWell")


def test_bodies_of_other_dialects_are_taken(service: FakeService) -> None:
    assert post(service, "/apply-template", {"input": "Héllo"}) == post(service, "/apply-template", CHAT)


def test_each_token_s_text(service: FakeService) -> None:
    told = post(service, "/tokenize", {"prompt": "Hi", "return_token_strs": True, "add_special_tokens": False})
    assert told["token_strs"] == ["H", "i"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "messages"),
        ("/tokenize", {**CHAT, "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {**CHAT, "continue_final_message": True}, "messages"),
        ("/tokenize", {"prompt": ["a", "b"]}, "prompt"),
        ("/tokenize", {"prompt": [1, 2]}, "prompt"),
        ("/tokenize", {"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [10**30]}, "tokens"),
        ("/detokenize", {"tokens": [1] * 1_000_000}, "tokens"),
        ("/apply-template", {"messages": [{"role": "nobody"}]}, "messages[0]"),
        ("/apply-template", {"prompt": ["a", "b"]}, "prompt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_named(service: FakeService, path: str, body: dict[str, Any], param: str) -> None:
    assert post(service, path, body, 400)["error"]["param"].startswith(param)


class Surrounding(FakeTokenizer):
    """Puts a token before and one after every text, as some tokenizers do."""

    def encode(self, text: str, max_tokens: int | None = None, salt: str = "") -> EncodedPrompt:
        return EncodedPrompt.of_text((256, *super().encode(text, max_tokens).token_ids, 259))


class Surroundings(FakeTokenizers):
    def load(self, source: ModelSource) -> Tokenizer:
        return Surrounding()


@pytest.mark.parametrize(("text", "ids"), [("Hi", [72, 105]), ("", [])])
def test_special_tokens_around_a_text_can_be_left_out(text: str, ids: list[int]) -> None:
    with fake_service(tokenizers=Surroundings()) as service:
        assert post(service, "/tokenize", {"prompt": text})["tokens"] == [256, *ids, 259]
        assert post(service, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"] == ids
        assert post(service, "/tokenize", {"content": text})["tokens"] == ids
        assert post(service, "/tokenize", {"content": text, "add_special": True})["tokens"] == [256, *ids, 259]
