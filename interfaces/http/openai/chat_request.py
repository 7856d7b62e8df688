"""The body of POST /v1/chat/completions, and what it asks for in the domain's words."""

from typing import Any, Literal, cast

from msgspec import Struct

from domain.chat import Json, ToolSpec
from domain.errors import InvalidRequest
from domain.reasoning_budget import ReasoningLimit
from domain.request import ChatPrompt
from interfaces.http.openai.chat_messages import AssistantMessage, Message, chat_messages
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
    reasoning_budget: int | None = None
    thinking_budget: int | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


_BUDGETS = ("reasoning_budget", "thinking_budget", "thinking_token_budget")
"""One thing, by the names that servers have for it."""


def chat_prompt(body: ChatCompletionRequest) -> ChatPrompt:
    """Raises InvalidRequest for whatever the body asks for that cannot be had."""
    if body.response_format is not None and body.response_format.type != "text":
        raise InvalidRequest(
            f"response_format {body.response_format.type} is not supported yet; only text is", param="response_format"
        )
    template_kwargs = cast("dict[str, Json]", dict(body.chat_template_kwargs or {}))
    if body.reasoning_effort is not None:
        template_kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    return ChatPrompt(chat_messages(body.messages), _tools(body), template_kwargs, continues=_continues(body))


def reasoning_limit(body: ChatCompletionRequest) -> ReasoningLimit | None:
    """-1 is no limit, as elsewhere; without a budget, the effort `none` is one of no tokens. Raises InvalidRequest."""
    if (name := _budget_name(body)) is not None:
        budget = getattr(body, name)
        return None if budget == -1 else ReasoningLimit(budget)
    return ReasoningLimit(0, is_firm=False) if body.reasoning_effort == "none" else None


def num_logprobs(body: ChatCompletionRequest) -> int | None:
    """How many alternatives to report a token; None for no log probabilities. Raises InvalidRequest."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def max_tokens(body: ChatCompletionRequest) -> int | None:
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def wire_names(body: ChatCompletionRequest) -> dict[str, str]:
    """The client's names for fields that the domain calls otherwise, for `renamed`."""
    names = {"max_tokens": "max_completion_tokens"} if body.max_completion_tokens is not None else {}
    return names | {"reasoning_budget": _budget_name(body) or _BUDGETS[0]}


def _budget_name(body: ChatCompletionRequest) -> str | None:
    return next((name for name in _BUDGETS if getattr(body, name) is not None), None)


def _continues(body: ChatCompletionRequest) -> bool:
    """As vLLM's clients ask for it, or by a mark on the message, as DeepSeek's and Kimi's do."""
    last = body.messages[-1] if body.messages else None
    is_marked = isinstance(last, AssistantMessage) and bool(last.prefix or last.partial)
    if body.add_generation_prompt is False and not body.continue_final_message:
        raise InvalidRequest(
            "add_generation_prompt can only be false with continue_final_message", param="add_generation_prompt"
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
        )
    return is_marked or bool(body.continue_final_message)


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


__all__ = ("ChatCompletionRequest", "chat_prompt", "max_tokens", "num_logprobs", "reasoning_limit", "wire_names")
