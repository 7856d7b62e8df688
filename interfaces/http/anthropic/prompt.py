"""What a body asks for, in the domain's words."""

from domain.chat import Role
from domain.errors import InvalidRequest
from domain.reasoning_budget import ReasoningLimit
from domain.request import ChatPrompt
from domain.sampling import SamplingParams, StopRules
from interfaces.http.anthropic.conversation import conversation
from interfaces.http.anthropic.messages_request import MessagesRequest, PromptFields
from interfaces.http.anthropic.tools import tool_specs
from interfaces.http.parameters import refuse_unsupported
from interfaces.http.thinking import thinking_kwargs

WIRE_NAMES = {"stop": "stop_sequences", "reasoning_budget": "thinking.budget_tokens"}
"""The client's names for fields that the domain calls otherwise."""


def chat_prompt(body: PromptFields) -> ChatPrompt:
    """Raises InvalidRequest for whatever the body asks for that cannot be had."""
    refuse_unsupported(body)
    output = body.output_config
    if output is not None and output.format is not None:
        raise InvalidRequest("output_config.format is not supported yet", param="output_config.format")
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    messages = conversation(body.system, body.messages)
    return ChatPrompt(
        messages,
        tool_specs(body.tools or (), body.tool_choice),
        thinking_kwargs(thinks, None if output is None else output.effort),
        continues=messages[-1:] != () and messages[-1].role is Role.ASSISTANT,
    )


def reasoning_limit(body: MessagesRequest) -> ReasoningLimit | None:
    """Raises InvalidRequest."""
    thinking = body.thinking
    if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
        return None
    return ReasoningLimit(thinking.budget_tokens, is_firm=False)


def sampling_params(body: MessagesRequest) -> SamplingParams:
    """Raises InvalidRequest."""
    defaults = SamplingParams()
    return SamplingParams(
        temperature=defaults.temperature if body.temperature is None else body.temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        top_k=defaults.top_k if body.top_k is None else body.top_k,
    )


def stop_rules(body: MessagesRequest) -> StopRules:
    """Raises InvalidRequest."""
    return StopRules(body.max_tokens, stop=tuple(body.stop_sequences or ()), fits_room=True)


__all__ = ("WIRE_NAMES", "chat_prompt", "reasoning_limit", "sampling_params", "stop_rules")
