"""The body of POST /v1/chat/completions, and what it asks for in the domain's words."""

from typing import Any, Literal, cast

from msgspec import Struct

from domain.chat import Json, ToolSpec
from domain.errors import InvalidRequest
from domain.request import ChatPrompt
from interfaces.http.openai.chat_messages import Message, chat_messages
from interfaces.http.openai.completion_fields import CompletionFields


class ToolFunction(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct):
    function: ToolFunction
    type: Literal["function"] = "function"


class ResponseFormat(Struct):
    type: Literal["text", "json_object", "json_schema"]


class ChatCompletionRequest(CompletionFields, kw_only=True):
    """Unknown fields are ignored unless they would change the answer; those are refused by name."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def chat_prompt(body: ChatCompletionRequest) -> ChatPrompt:
    """Raises InvalidRequest for whatever the body asks for that cannot be had."""
    if body.response_format is not None and body.response_format.type != "text":
        raise InvalidRequest(
            f"response_format {body.response_format.type} is not supported yet; only text is", param="response_format"
        )
    template_kwargs = cast("dict[str, Json]", dict(body.chat_template_kwargs or {}))
    if body.reasoning_effort is not None:
        template_kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return ChatPrompt(chat_messages(body.messages), _tools(body), template_kwargs)


def num_logprobs(body: ChatCompletionRequest) -> int | None:
    """How many alternatives to report a token; None for no log probabilities. Raises InvalidRequest."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def max_tokens(body: ChatCompletionRequest) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def wire_names(body: ChatCompletionRequest) -> dict[str, str]:
    """The client's names for fields that the domain calls otherwise, for `renamed`."""
    return {"max_tokens": "max_completion_tokens"} if body.max_completion_tokens is not None else {}


def _tools(body: ChatCompletionRequest) -> tuple[ToolSpec, ...]:
    if body.tool_choice == "none":
        return ()
    if body.tool_choice not in (None, "auto"):
        raise InvalidRequest(
            "tool_choice can only be auto or none; forcing a call is not supported yet", param="tool_choice"
        )
    functions = [tool.function for tool in body.tools or ()]
    return tuple(
        ToolSpec(function.name, function.description or "", cast("dict[str, Json]", function.parameters or {}))
        for function in functions
    )


__all__ = ("ChatCompletionRequest", "chat_prompt", "max_tokens", "num_logprobs", "wire_names")
