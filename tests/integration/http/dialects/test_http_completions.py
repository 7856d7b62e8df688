"""POST /v1/completions over a socket, on the toy engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from tests.support.http.clients import completion_text, events
from tests.support.http.servers.fake_service import FakeService, fake_service

PATH = "/v1/completions"


@pytest.fixture
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=lambda prompt: tuple(reversed(prompt)))) as running:
        yield running


def post(service: FakeService, **body: Any) -> Any:
    response = service.client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(service: FakeService, **body: Any) -> list[Any]:
    response = service.client.post(PATH, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    return events(response.text)


def texts(answer: Any) -> list[str]:
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))
    return [choice["text"] for choice in answer["choices"]]


def test_plain_answer_byte_for_byte(service: FakeService) -> None:
    assert service.client.post(PATH, json={"prompt": "abc"}).text == (
        '{"object":"text_completion","id":"cmpl-1","created":1700000001,"model":"fake-attention","system_fingerprint":"fp_fc6cd312dc",'
        '"choices":[{"index":0,"text":"cba","logprobs":null,"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0},'
        '"completion_tokens_details":{"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}'
    )


def test_streamed_answer_byte_for_byte(service: FakeService) -> None:
    head = (
        'data: {"object":"text_completion","id":"cmpl-1","created":1700000001,"model":"fake-attention",'
        '"system_fingerprint":"fp_fc6cd312dc",'
    )
    body = {"prompt": "ab", "stream": True, "stream_options": {"include_usage": True}}
    assert service.client.post(PATH, json=body).text == (
        head + '"choices":[{"index":0,"text":"b","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
        + head + '"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}],"usage":null}\n\n'
        + head + '"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}],"usage":null}\n\n'
        + head + '"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,'
        '"prompt_tokens_details":{"cached_tokens":0},'
        '"completion_tokens_details":{"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}\n\n'
        "data: [DONE]\n\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("abc", ["cba"]),
        (["abc"], ["cba"]),
        (["abc", "xy"], ["cba", "yx"]),
        ([97, 98, 99], ["cba"]),
        ([[97, 98], [120]], ["ba", "x"]),
        (["ab", [120, 121]], ["ba", "yx"]),
    ],
)
def test_every_form_of_prompt_plain_and_streamed(service: FakeService, prompt: Any, expected: list[str]) -> None:
    assert texts(post(service, prompt=prompt)) == expected
    chunks = stream(service, prompt=prompt)
    assert [completion_text(chunks, index) for index in range(len(expected))] == expected


def test_n_and_several_prompts_number_their_choices_prompt_by_prompt(service: FakeService) -> None:
    answer = post(service, prompt=["ab", "xyz"], n=2, best_of=2)
    assert texts(answer) == ["ba", "ba", "zyx", "zyx"]
    assert answer["usage"]["prompt_tokens"] == 5
    chunks = stream(service, prompt=["ab", "xyz"], n=2)
    assert [completion_text(chunks, index) for index in range(4)] == ["ba", "ba", "zyx", "zyx"]


def test_echo_puts_the_prompt_first(service: FakeService) -> None:
    assert texts(post(service, prompt=["ab", [120, 121]], echo=True)) == ["abba", "xyyx"]
    chunks = stream(service, prompt=["ab", [120, 121]], echo=True)
    assert [completion_text(chunks, index) for index in range(2)] == ["abba", "xyyx"]


def test_without_max_tokens_sixteen_are_made() -> None:
    with fake_service(FakeOptions(eos_every=0)) as service:
        answer = post(service, prompt="x")
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


def test_logprobs_in_the_shape_of_text_completions(service: FakeService) -> None:
    logprobs = post(service, prompt="ab", logprobs=1)["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["b", "a", "<|end|>"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert all(token in top for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))
    assert len(logprobs["token_logprobs"]) == 3
    parts = [choice["logprobs"] for chunk in stream(service, prompt="ab", logprobs=1) for choice in chunk["choices"]]
    assert [token for part in parts if part for token in part["tokens"]] == logprobs["tokens"]
    assert [offset for part in parts if part for offset in part["text_offset"]] == logprobs["text_offset"]


def test_token_ids_on_request(service: FakeService) -> None:
    choices = post(service, prompt=["ab", "x"], return_token_ids=True)["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == [[97, 98], [120]]
    assert [choice["token_ids"] for choice in choices] == [[98, 97, 258], [120, 258]]
    chunks = stream(service, prompt=["ab", "x"], return_token_ids=True)
    first = [
        choice["prompt_token_ids"] for chunk in chunks for choice in chunk["choices"] if "prompt_token_ids" in choice
    ]
    assert first == [[97, 98], [120]]
