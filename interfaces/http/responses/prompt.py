"""What a body asks for, in the domain's words."""

from typing import Any

from domain.chat import ChatMessage, Json, Role
from domain.errors import InvalidRequest
from domain.reasoning_budget import ReasoningLimit
from domain.request import ChatPrompt
from domain.sampling import SamplingParams, StopRules
from interfaces.http.parameters import refuse_unsupported
from interfaces.http.responses.conversation import conversation, tools_in
from interfaces.http.responses.responses_request import ResponsesRequest
from interfaces.http.responses.tools import Tools
from interfaces.http.thinking import thinking_kwargs

WIRE_NAMES = {"max_tokens": "max_output_tokens"}
"""The client's names for fields that the domain calls otherwise."""


def chat_prompt(body: ResponsesRequest) -> ChatPrompt:
    """Raises InvalidRequest for whatever the body asks for that cannot be had."""
    refuse_unsupported(body)
    _refuse_format(body)
    instructions = [ChatMessage(Role.SYSTEM, body.instructions)] if body.instructions else []
    tools = tools_of(body).specs if _shows_tools(body.tool_choice) else ()
    return ChatPrompt((*instructions, *conversation(body.input)), tools, _template_kwargs(body))


def tools_of(body: ResponsesRequest) -> Tools:
    """All that the body names, also in its input. Raises InvalidRequest."""
    named = [(f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ())]
    return Tools([*named, *tools_in(body.input)])


def sampling_params(body: ResponsesRequest) -> SamplingParams:
    """Raises InvalidRequest."""
    defaults = SamplingParams()
    return SamplingParams(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        seed=body.seed,
    )


def stop_rules(body: ResponsesRequest) -> StopRules:
    """Raises InvalidRequest."""
    return StopRules(body.max_output_tokens, fits_room=True)


def reasoning_limit(body: ResponsesRequest) -> ReasoningLimit | None:
    """The effort `none` is a budget of no tokens, for templates that have no switch."""
    is_none = body.reasoning is not None and body.reasoning.effort == "none"
    return ReasoningLimit(0, is_firm=False) if is_none else None


def _refuse_format(body: ResponsesRequest) -> None:
    format = None if body.text is None else body.text.format
    if format is not None and format.get("type") != "text":
        raise InvalidRequest("text.format is not supported yet; only text is", param="text.format")


def _shows_tools(choice: str | dict[str, Any] | None) -> bool:
    if choice not in (None, "auto", "none"):
        raise InvalidRequest(
            "tool_choice can only be auto or none; forcing a call is not supported yet", param="tool_choice"
        )
    return choice != "none"


def _template_kwargs(body: ResponsesRequest) -> dict[str, Json]:
    effort = None if body.reasoning is None else body.reasoning.effort
    if effort is None:
        return {}
    return thinking_kwargs(effort != "none", None if effort == "none" else effort)


__all__ = ("WIRE_NAMES", "chat_prompt", "reasoning_limit", "sampling_params", "stop_rules", "tools_of")
