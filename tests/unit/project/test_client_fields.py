"""The request fields of the clients' own packages: each is declared, so that a new release of one shows here. A field
that is declared is supported, refused by name, or stands in the documentation as having no effect."""

from collections.abc import Iterable
from typing import Any

import pytest
from anthropic.types import MessageCountTokensParams, OutputConfigParam
from anthropic.types.beta import BetaOutputConfigParam
from anthropic.types.beta import message_count_tokens_params as beta_count
from anthropic.types.beta import message_create_params as beta_message
from anthropic.types.message_create_params import MessageCreateParamsBase
from msgspec import Struct
from openai.types import EmbeddingCreateParams
from openai.types.chat import ChatCompletionStreamOptionsParam
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.responses import ResponseTextConfigParam
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_compact_params import ResponseCompactParams
from openai.types.responses.response_create_params import ContextManagement, ResponseCreateParamsBase
from openai.types.shared_params import Reasoning

import interfaces.http.anthropic.messages as anthropic
import interfaces.http.ollama.chat as ollama
import interfaces.http.responses.request as responses
from interfaces.http.fields.parameters import parameters
from interfaces.http.ollama.embed import EmbeddingsRequest, EmbedRequest
from interfaces.http.openai.chat_request import ChatCompletionRequest
from interfaces.http.openai.completions import CompletionRequest
from interfaces.http.openai.embeddings import EmbeddingRequest
from interfaces.http.openai.shared import StreamOptions
from interfaces.http.responses.compact import CompactRequest

HEADERS = {"betas", "user_profile_id", "workspace_id"}
"""Parameters of Anthropic's package that it sends as headers."""

BODIES: list[tuple[Any, type[Struct]]] = [
    (ChatParams, ChatCompletionRequest),
    (CompletionCreateParamsBase, CompletionRequest),
    (EmbeddingCreateParams, EmbeddingRequest),
    (ResponseCreateParamsBase, responses.ResponsesRequest),
    (InputTokenCountParams, responses.ResponsesRequest),
    (ResponseCompactParams, CompactRequest),
    (MessageCreateParamsBase, anthropic.MessagesRequest),
    (beta_message.MessageCreateParamsBase, anthropic.MessagesRequest),
    (MessageCountTokensParams, anthropic.CountTokensRequest),
    (beta_count.MessageCountTokensParams, anthropic.CountTokensRequest),
]

PARTS: list[tuple[Any, type[Struct], set[str]]] = [
    (ChatCompletionStreamOptionsParam, StreamOptions, {"include_obfuscation"}),
    (OutputConfigParam, anthropic.OutputConfig, set()),
    (BetaOutputConfigParam, anthropic.OutputConfig, {"task_budget"}),
    (Reasoning, responses.Reasoning, {"context", "generate_summary", "mode"}),
    (ResponseTextConfigParam, responses.TextConfig, {"verbosity"}),
    (ContextManagement, responses.ContextEdit, set()),
]
"""Objects in bodies, each with those of its fields that have no effect on the answer."""


def wire_names(body: type[Struct]) -> set[str]:
    return {one.name for one in parameters(body)}


@pytest.mark.parametrize(("theirs", "body"), BODIES, ids=lambda value: f"{value.__module__}.{value.__name__}")
def test_every_field_of_a_client_is_declared(theirs: Any, body: type[Struct]) -> None:
    assert set(theirs.__annotations__) - HEADERS - wire_names(body) == set()


@pytest.mark.parametrize(("theirs", "part", "dull"), PARTS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_field_of_an_object_is_read_or_listed(theirs: Any, part: type[Struct], dull: Iterable[str]) -> None:
    assert set(theirs.__annotations__) - set(part.__struct_fields__) == set(dull)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ChatRequest", ollama.ChatRequest),
        ("GenerateRequest", ollama.GenerateRequest),
        ("Options", ollama.Options),
        ("EmbedRequest", EmbedRequest),
        ("EmbeddingsRequest", EmbeddingsRequest),
    ],
)
def test_every_field_of_ollamas_client_is_declared(name: str, body: type[Struct]) -> None:
    types = pytest.importorskip("ollama._types", reason="the package `ollama` is not installed")
    assert set(getattr(types, name).model_fields) - wire_names(body) == set()
