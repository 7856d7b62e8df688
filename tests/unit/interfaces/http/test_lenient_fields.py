"""The values with which clients say that they ask for nothing, in every dialect's body."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import Struct

from adapters.fake.environment import FakeIds
from domain.errors import InvalidRequest
from domain.request.chat import ChatMessage, Role, ToolCall
from domain.request.document import Owner
from domain.request.request import ChatPrompt, GenerationRequest
from interfaces.http.anthropic.messages import MessagesRequest
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.chat import ChatRequest, GenerateRequest
from interfaces.http.ollama.embed import EmbedRequest
from interfaces.http.openai.chat_request import ChatCompletionRequest
from interfaces.http.openai.completions import CompletionRequest
from interfaces.http.responses.request import ResponsesRequest

HELLO = [{"role": "user", "content": "Hi"}]
CHAT: tuple[type[Struct], dict[str, Any]] = (ChatCompletionRequest, {"messages": HELLO})
TEXT: tuple[type[Struct], dict[str, Any]] = (CompletionRequest, {"prompt": "Hi"})
RESPONSES: tuple[type[Struct], dict[str, Any]] = (ResponsesRequest, {"input": "Hi"})
MESSAGES: tuple[type[Struct], dict[str, Any]] = (MessagesRequest, {"messages": HELLO})
OLLAMA: tuple[type[Struct], dict[str, Any]] = (ChatRequest, {"messages": HELLO})
GENERATE: tuple[type[Struct], dict[str, Any]] = (GenerateRequest, {"prompt": "Hi"})
ALL = {"chat": CHAT, "text": TEXT, "responses": RESPONSES, "messages": MESSAGES, "ollama": OLLAMA, "generate": GENERATE}

_SERVICES = SimpleNamespace(default_model="default", ids=FakeIds(), trace_context=dict)
CONTEXT = cast(
    RequestContext,
    SimpleNamespace(
        services=_SERVICES, arrived_ns=0, salt=lambda salt: salt or "", document_owner=lambda _salt: Owner()
    ),
)


def asked(kind: tuple[type[Struct], dict[str, Any]], **fields: Any) -> GenerationRequest:
    body: Any = body_decoder(kind[0])(json.dumps({**kind[1], **fields}).encode())
    return body.requests(CONTEXT)[0]


@pytest.mark.parametrize("kind", ALL.values(), ids=ALL)
def test_an_empty_model_is_the_default(kind: tuple[type[Struct], dict[str, Any]]) -> None:
    assert asked(kind, model="").model == asked(kind).model == "default"


def test_an_empty_model_of_vectors_is_the_default() -> None:
    body = body_decoder(EmbedRequest)(b'{"model": "", "input": "x"}')
    assert body.request(CONTEXT).model == "default"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (TEXT, "max_tokens"),
        (RESPONSES, "max_output_tokens"),
        (MESSAGES, "max_tokens"),
    ],
)
def test_a_length_of_minus_one_is_no_limit(kind: tuple[type[Struct], dict[str, Any]], name: str) -> None:
    assert asked(kind, **{name: -1}).stop.max_tokens is None
    assert asked(kind, **{name: 7}).stop.max_tokens == 7
    with pytest.raises(InvalidRequest, match="negative"):
        asked(kind, **{name: -2})


@pytest.mark.parametrize("kind", [CHAT, TEXT], ids=["chat", "text"])
def test_lists_of_tokens(kind: tuple[type[Struct], dict[str, Any]]) -> None:
    request = asked(kind, stop_token_ids=[3, 1, 3], allowed_token_ids=[7, 8])
    assert (request.stop.token_ids, request.sampling.allowed_token_ids) == ({1, 3}, {7, 8})
    request = asked(kind, stop_token_ids=[], allowed_token_ids=[])
    assert (request.stop.token_ids, request.sampling.allowed_token_ids) == (frozenset(), None)
    for name in ("stop_token_ids", "allowed_token_ids"):
        for wrong in ([-1], [2**40], [*range(1025)]):
            with pytest.raises(InvalidRequest, match=name):
                asked(kind, **{name: wrong})
    with pytest.raises(InvalidRequest, match="allowed_token_ids cannot be combined"):
        asked(kind, allowed_token_ids=[7], bad_words=["x"])


def test_no_alternatives_need_no_log_probabilities() -> None:
    assert asked(CHAT, top_logprobs=0).sampling.num_logprobs is None
    assert asked(CHAT, top_logprobs=0, logprobs=True).sampling.num_logprobs == 0
    with pytest.raises(InvalidRequest, match="needs logprobs"):
        asked(CHAT, top_logprobs=1)


@pytest.mark.parametrize("kind", [OLLAMA, GENERATE])
def test_options_of_ollama_may_be_whole_numbers_with_a_point(kind: tuple[type[Struct], dict[str, Any]]) -> None:
    options = {"num_predict": 20.0, "top_k": 40.0, "seed": -1.0, "mirostat": 0.0, "temperature": 0, "stop": []}
    request = asked(kind, options=options)
    assert (request.stop.max_tokens, request.sampling.top_k, request.sampling.seed) == (20, 40, None)
    assert type(request.stop.max_tokens) is type(request.sampling.top_k) is int
    for name in ("num_predict", "top_k", "seed"):
        with pytest.raises(InvalidRequest, match=rf"^options\.{name} must be a whole number"):
            asked(kind, options={name: 20.5})


def test_null_is_absent_in_a_conversation_of_ollama() -> None:
    call = {"id": None, "function": {"name": "read", "arguments": None}}
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call]}]
    tool = {"type": None, "function": {"name": "read", "description": None, "parameters": None}}
    prompt = asked(OLLAMA, messages=messages, tools=[tool], options=None, format=None).prompt
    assert isinstance(prompt, ChatPrompt)
    calls = (ToolCall("call_1_0", "read", "{}"),)
    assert prompt.messages[1] == ChatMessage(Role.ASSISTANT, "", tool_calls=calls)
