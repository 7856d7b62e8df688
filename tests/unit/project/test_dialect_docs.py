"""The pages of the dialects say what the code declares."""

from typing import Annotated, Any

import pytest
from msgspec import Struct

from domain.errors import InvalidRequest
from interfaces.http.anthropic.messages import CountTokensRequest, MessagesRequest
from interfaces.http.fields.parameters import (
    ignored,
    parameters,
    refuse_unsupported,
    refused,
    supported,
    without_effect,
)
from interfaces.http.ollama.chat import ChatRequest, GenerateRequest, Options
from interfaces.http.ollama.embed import EmbeddingsRequest, EmbedRequest
from interfaces.http.openai.chat_request import ChatCompletionRequest
from interfaces.http.openai.completions import CompletionRequest
from interfaces.http.openai.embeddings import EmbeddingRequest
from interfaces.http.openai.rerank import RerankRequest, ScoreRequest
from interfaces.http.responses.compact import CompactRequest
from interfaces.http.responses.request import ResponsesRequest
from tests.support.http.dialect_docs import FOLDER, PAGES, page

BODIES = [
    MessagesRequest,
    CountTokensRequest,
    ResponsesRequest,
    CompactRequest,
    ChatCompletionRequest,
    CompletionRequest,
    ChatRequest,
    GenerateRequest,
    Options,
    EmbeddingRequest,
    EmbedRequest,
    EmbeddingsRequest,
    RerankRequest,
    ScoreRequest,
]


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_are_made_of_the_declarations(name: str) -> None:
    assert (FOLDER / name).read_text() == page(name), "run python -m tests.support.http.dialect_docs"


@pytest.mark.parametrize("body", BODIES)
def test_every_field_is_declared(body: type[Struct]) -> None:
    reported = parameters(body)
    assert [one.attribute for one in reported] == list(body.__struct_fields__)
    assert all(one.note for one in reported)


class _Options(Struct):
    dull_too: Annotated[int | None, ignored("neither does it")] = None


class _Body(Struct):
    good: Annotated[int | None, supported("it does")] = None
    dull: Annotated[Any, ignored("it does not")] = None
    bad: Annotated[list[int] | None, refused("it cannot", [], [0])] = None
    options: Annotated[_Options | None, supported("see there")] = None


def test_what_is_declared_as_ignored_is_reported_where_it_was_sent() -> None:
    assert without_effect(_Body(1)) == []
    assert without_effect(_Body(dull=0, options=_Options(7))) == ["dull", "options.dull_too"]


def test_what_is_declared_as_refused_is_refused_unless_it_asks_for_nothing() -> None:
    for body in (_Body(), _Body(1, 2, []), _Body(bad=[0])):
        refuse_unsupported(body)
    with pytest.raises(InvalidRequest, match="bad is not supported") as error:
        refuse_unsupported(_Body(bad=[1]))
    assert error.value.param == "bad"
