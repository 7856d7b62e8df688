"""POST /v1/chat/completions over a socket, on the toy engine: what goes out, byte for byte."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from tests.support.http.clients import chat_text, events
from tests.support.http.servers.fake_service import FakeService, fake_service

HELLO = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"


@pytest.fixture
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(reply=reply_with("Hé!"))) as running:
        yield running


def post(service: FakeService, **body: Any) -> Any:
    response = service.client.post(PATH, json={"messages": HELLO, **body})
    assert response.status_code == 200, response.text
    return response.json()


def test_plain_answer_byte_for_byte(service: FakeService) -> None:
    response = service.client.post(PATH, json={"messages": HELLO})
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] == "req-2"
    assert response.text == (
        '{"object":"chat.completion","id":"chatcmpl-1","created":1700000001,"model":"fake-attention","system_fingerprint":"fp_fc6cd312dc",'
        '"choices":[{"index":0,"message":{"role":"assistant","content":"Hé!","refusal":null},'
        '"finish_reason":"stop","logprobs":null}],'
        '"usage":{"prompt_tokens":21,"completion_tokens":5,"total_tokens":26,'
        '"prompt_tokens_details":{"cached_tokens":0},'
        '"completion_tokens_details":{"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}'
    )


def test_streamed_answer_byte_for_byte(service: FakeService) -> None:
    response = service.client.post(PATH, json={"messages": HELLO, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    head = (
        'data: {"object":"chat.completion.chunk","id":"chatcmpl-1","created":1700000001,"model":"fake-attention",'
        '"system_fingerprint":"fp_fc6cd312dc",'
    )
    assert response.text == (
        head + '"choices":[{"index":0,"delta":{"role":"assistant","content":""},'
        '"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"choices":[{"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"choices":[{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"choices":[{"index":0,"delta":{"content":"!"},"logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
        + "data: [DONE]\n\n"
    )  # fmt: skip


def test_include_usage_adds_one_chunk_and_nulls_before_it(service: FakeService) -> None:
    response = service.client.post(
        PATH, json={"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    )
    *others, last = events(response.text)
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 21,
        "completion_tokens": 5,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }


def test_stop_strings_end_the_text_and_never_show() -> None:
    with fake_service(FakeOptions(reply=reply_with("one two three"))) as service:
        for stop in ("two", ["zzz", "two thr"]):
            answer = post(service, stop=stop)["choices"][0]
            assert (answer["message"]["content"], answer["finish_reason"]) == ("one ", "stop")
        body = {"messages": HELLO, "stream": True, "stop": ["two"]}
        assert chat_text(events(service.client.post(PATH, json=body).text)) == "one "


def test_several_choices_are_seeded_one_after_another() -> None:
    with fake_service(FakeOptions(eos_every=0)) as service:
        body = {"seed": 7, "max_tokens": 12, "temperature": 2}
        together = [choice["message"]["content"] for choice in post(service, n=3, **body)["choices"]]
        alone = [post(service, **{**body, "seed": 7 + index})["choices"][0]["message"]["content"] for index in range(3)]
        assert together == alone
        assert len(set(together)) == 3
        streamed = events(service.client.post(PATH, json={"messages": HELLO, "stream": True, "n": 3, **body}).text)
        assert [chat_text(streamed, index) for index in range(3)] == alone
        finishes = [choice["index"] for chunk in streamed for choice in chunk["choices"] if choice["finish_reason"]]
        assert sorted(finishes) == [0, 1, 2]


def test_logprobs_come_with_their_tokens(service: FakeService) -> None:
    content = post(service, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["H", "\ufffd", "\ufffd", "!", "<|end|>"]
    assert content[0]["bytes"] == [72]
    assert content[1]["bytes"] is None
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert all(entry["logprob"] <= 0 for entry in content)
    assert post(service, logprobs=True)["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_token_ids_on_request(service: FakeService) -> None:
    answer = post(service, return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [*"Hé!".encode(), 258]
    assert len(answer["prompt_token_ids"]) == 21
    body = {"messages": HELLO, "stream": True, "return_token_ids": True}
    chunks = events(service.client.post(PATH, json=body).text)
    assert chunks[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])


def test_messages_reach_the_template_with_parts_joined(service: FakeService) -> None:
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "joe"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": "done", "reasoning_content": "hm"},
        {"role": "user", "content": "go on"},
    ]
    answer = post(service, messages=messages, return_token_ids=True)
    prompt = bytes(token for token in answer["prompt_token_ids"] if token < 256).decode()
    assert prompt == (
        'developer\nrules\nuser\nab\nassistant\n\n<call>f {"x":1}</call>\ntool\n42\nassistant\ndone\nuser\ngo on\n'
        "assistant\n"
    )


def test_tools_and_template_arguments_reach_the_template(service: FakeService) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]

    def prompt(**body: Any) -> str:
        return str(
            bytes(token for token in post(service, return_token_ids=True, **body)["prompt_token_ids"] if token < 256)
        )

    assert "look_up" in prompt(tools=tools)
    assert "look_up" in prompt(tools=tools, tool_choice="auto")
    assert prompt(tools=tools, tool_choice="none") == prompt(tools=tools)
    assert "<think>" in prompt(chat_template_kwargs={"enable_thinking": True})
    assert "<think>" not in prompt(chat_template_kwargs={"enable_thinking": False})


@pytest.mark.parametrize("stream", [False, True])
def test_fields_without_effect_are_reported(service: FakeService, stream: bool) -> None:
    fields = {"turboquant_kv_bits": 4, "kv_bits": 3.5, "draft_model": None, "stream": stream}
    answer = service.client.post("/v1/chat/completions", json={"messages": HELLO, **fields})
    assert answer.headers["x-cairn-ignored"] == "kv_bits, turboquant_kv_bits"
    plain = service.client.post("/v1/chat/completions", json={"messages": HELLO, "stream": stream})
    assert "x-cairn-ignored" not in plain.headers


def test_max_completion_tokens_is_the_modern_name(service: FakeService) -> None:
    assert post(service, max_completion_tokens=1)["usage"]["completion_tokens"] == 1
    assert post(service, max_completion_tokens=1, max_tokens=3)["usage"]["completion_tokens"] == 1


def test_a_client_may_choose_the_request_id(service: FakeService) -> None:
    sent = {"x-request-id": "trace-me_1.2"}
    assert service.client.get("/health", headers=sent).headers["x-request-id"] == "trace-me_1.2"
    odd = {"x-request-id": "not plain!"}
    assert service.client.get("/health", headers=odd).headers["x-request-id"].startswith("req-")


def test_the_trace_context_travels_with_the_request() -> None:
    carrier = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    with fake_service(FakeOptions(reply=reply_with("x")), trace_context=lambda: carrier) as service:
        post(service)
        queued = service.events.of("RequestQueued")
        assert [event.trace_carrier for event in queued] == [carrier]
