"""Answers and stream events, read strictly by the models of the official `openai` and `anthropic` packages.

A field that a model does not know is a mistake of ours, unless it is in BEYOND. A field that OpenAI's document requires
and its package lacks or leaves open is in REQUIRED.
"""

import base64
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Annotated, Any

from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types import Completion, CreateEmbeddingResponse, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import (
    CompactedResponse,
    InputTokenCountResponse,
    Response,
    ResponseItem,
    ResponseItemList,
    ResponsesServerEvent,
    ResponseStreamEvent,
)
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

_TOKENS = frozenset({"token_ids", "prompt_token_ids", "prompt_logprobs"})

BEYOND: Mapping[str, frozenset[str]] = {
    # Cairn's own: the limit of a loop of tools, for which clients know no reason
    "IncompleteDetails": frozenset({"limit"}),
    # Open Responses requires them and OpenAI sends them; the package's model has none of them
    "Response": frozenset({"store", "presence_penalty", "frequency_penalty"}),
    # OpenAI's document requires it
    "ResponseFunctionCallArgumentsDoneEvent": frozenset({"name"}),
    "ResponseFunctionCallArgumentsWsDone": frozenset({"name"}),
    # Open Responses requires them in events too, and OpenAI sends them
    "Logprob": frozenset({"bytes"}),
    "LogprobTopLogprob": frozenset({"bytes"}),
    # those of images, where there are any
    "InputTokensDetails": frozenset({"image_tokens"}),
    # drafted tokens (docs/dialects), as chat completions have them
    "OutputTokensDetails": frozenset({"accepted_prediction_tokens", "rejected_prediction_tokens"}),
    "Usage": frozenset({"accepted_prediction_tokens", "rejected_prediction_tokens", "prompt_tokens_details"}),
    "MessageDeltaUsage": frozenset({"accepted_prediction_tokens", "rejected_prediction_tokens"}),
    # the names that clients read reasoning by, and Cairn's own
    "ChatCompletionMessage": frozenset({"reasoning_content"}),
    "ChoiceDelta": frozenset({"reasoning_content"}),
    "ChatCompletion": frozenset({"x_cairn", *_TOKENS}),
    "ChatCompletionChunk": frozenset({"x_cairn", *_TOKENS}),
    "Choice": _TOKENS,
    "CompletionChoice": _TOKENS,
    "Completion": frozenset({"service_tier", *_TOKENS}),
    # vLLM has it
    "CreateEmbeddingResponse": frozenset({"id"}),
    # about the model and its place in this server
    "Model": frozenset({"note", "cairn", "state", "bytes", "pinned", "capabilities", "embedding_size"}),
    "ErrorObject": frozenset({"memory"}),
    "ErrorResponse": frozenset({"memory"}),
}
"""Fields that a model does not know, by its name."""

REQUIRED: Mapping[str, frozenset[str]] = {
    "FunctionTool": frozenset({"parameters", "strict"}),
    "ResponseFunctionCallArgumentsDoneEvent": frozenset({"name"}),
    "ResponseOutputText": frozenset({"logprobs"}),
}

SENT_BY_OPENAI = (
    "usage: null in response.created and response.in_progress, which the document has as an object",
    "finish_reason: null and usage: null in chunks, which the document has as values",
    "a base64 embedding, which the document has as a list",
    "messages of users in the output of response.compaction, which the document has as the assistant's",
)
"""What OpenAI itself sends against its document. Its package reads the first two; `_listed` makes the third a list, and
`Compacted` has the fourth."""

_EVENT = Annotated[ResponseStreamEvent, Field(discriminator="type")]
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Made once a kind: that takes a tenth of a second."""


def problem(kind: Any, value: object) -> str:
    """What is wrong with the value as an answer of this kind; empty for nothing."""
    try:
        read = _adapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        return f"{error} in {json.dumps(value)[:600]}"
    return "; ".join(_unlike(read, type(read).__name__))


def _unlike(value: object, path: str) -> Iterable[str]:
    if isinstance(value, BaseModel):
        name, extra = type(value).__name__, set(value.model_extra or ())
        if unknown := extra - BEYOND.get(name, frozenset()):
            yield f"{path} ({name}) has {sorted(unknown)}"
        if missing := REQUIRED.get(name, frozenset()) - extra - value.model_fields_set:
            yield f"{path} ({name}) lacks {sorted(missing)}"
        for field in type(value).model_fields:
            yield from _unlike(getattr(value, field), f"{path}.{field}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _unlike(entry, f"{path}[{index}]")


class Models(BaseModel):
    """The page of models, with the `object` that the package's own page leaves open."""

    object: str
    data: list[Model]


class Compacted(CompactedResponse):
    """A compacted conversation whose messages are anyone's."""

    output: list[ResponseItem]  # type: ignore[assignment]


class AnthropicModels(BaseModel):
    """The page of models in Anthropic's form."""

    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def answer_problem(method: str, path: str, status: int, body: bytes, *, is_anthropic: bool = False) -> str:
    """What is wrong with a whole answer of a route; empty for nothing and for routes of other dialects."""
    if not body:
        return ""
    if status >= 400:
        return _error_problem(path, json.loads(body)) if path.startswith("/v1/") else ""
    kind, read = _kind(method, path.rstrip("/"), is_anthropic=is_anthropic), json.loads(body)
    if kind is Message and any(_is_beta(block) for block in read["content"]):
        kind = BetaMessage
    return "" if kind is None else problem(kind, _listed(read))


def _kind(method: str, path: str, *, is_anthropic: bool) -> Any:
    if method == "POST":
        return {
            "/v1/chat/completions": ChatCompletion,
            "/v1/completions": Completion,
            "/v1/embeddings": CreateEmbeddingResponse,
            "/v1/responses": Response,
            "/v1/responses/compact": Compacted,
            "/v1/responses/input_tokens": InputTokenCountResponse,
            "/v1/messages": Message,
            "/v1/messages/count_tokens": MessageTokensCount,
        }.get(path)
    if method != "GET":
        return None
    if path == "/v1/models":
        return AnthropicModels if is_anthropic else Models
    if path.startswith("/v1/models/"):
        return ModelInfo if is_anthropic else Model
    if path.startswith("/v1/responses/"):
        return ResponseItemList if path.endswith("/input_items") else Response
    return None


def event_problem(path: str, event: dict[str, Any]) -> str:
    """What is wrong with an event of a stream; empty for nothing."""
    if set(event) == {"error"}:
        return _error_problem(path, event)
    match path:
        case "/v1/chat/completions":
            return problem(ChatCompletionChunk, event)
        case "/v1/completions":
            return problem(Completion, {**event, "choices": [_unfinished(choice) for choice in event["choices"]]})
        case "/v1/responses":
            return problem(_EVENT, event)
        case "/v1/messages" if event["type"] == "error":
            return problem(ErrorResponse, event)
        case "/v1/messages" if _is_beta(event.get("content_block")):
            return problem(BetaRawMessageStreamEvent, event)
        case "/v1/messages":
            return "" if event == {"type": "ping"} else problem(RawMessageStreamEvent, event)
    return ""


def _is_beta(block: Any) -> bool:
    """True for blocks that only the package's beta models have."""
    return block is not None and block["type"].startswith("mcp_")


def message_problem(event: dict[str, Any]) -> str:
    """What is wrong with a message of a WebSocket at /v1/responses; empty for nothing."""
    return problem(ResponsesServerEvent, event)


def _error_problem(path: str, body: dict[str, Any]) -> str:
    return problem(ErrorResponse, body) if path.startswith("/v1/messages") else problem(ErrorObject, body["error"])


def _unfinished(choice: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's chunks of a text completion have null until the last, which its model refuses."""
    return choice if choice["finish_reason"] else {**choice, "finish_reason": "stop"}


def _listed(body: Any) -> Any:
    if not isinstance(body, dict) or not isinstance(body.get("data"), list):
        return body
    data = [
        {**row, "embedding": _floats(row["embedding"])} if isinstance(row.get("embedding"), str) else row
        for row in body["data"]
    ]
    return {**body, "data": data}


def _floats(text: str) -> list[float]:
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))
