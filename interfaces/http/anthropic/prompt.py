"""What a body asks for, in the domain's words."""

from typing import Any

from domain.request.chat import Role
from domain.request.grammar import Grammar
from domain.request.reasoning_budget import NO_REASONING, ReasoningLimit
from domain.request.request import ChatPrompt
from domain.request.sampling import SamplingParams, StopRules
from interfaces.http.anthropic.conversation import conversation
from interfaces.http.anthropic.messages_request import MessagesRequest, PromptFields
from interfaces.http.anthropic.tools import tool_choice, tool_specs
from interfaces.http.fields.grammar_fields import response_format_grammar
from interfaces.http.fields.parameters import refuse_unsupported
from interfaces.http.fields.sampling_fields import thinking_kwargs

FORMAT = "output_config.format"
_NAMES = {"stop": "stop_sequences", "reasoning_budget": "thinking.budget_tokens"}


def chat_prompt(body: PromptFields) -> ChatPrompt:
    """Raises InvalidRequest for whatever the body asks for that cannot be had."""
    refuse_unsupported(body)
    output = body.output_config
    thinks = body.thinking is not None and body.thinking.type != "disabled"
    messages = conversation(body.system, body.messages)
    return ChatPrompt(
        messages,
        tool_specs(body.tools or ()),
        thinking_kwargs(thinks, None if output is None else output.effort),
        tool_choice(body.tool_choice),
        continues=messages[-1:] != () and messages[-1].role is Role.ASSISTANT,
    )


def grammar(body: PromptFields) -> Grammar | None:
    """Raises InvalidRequest."""
    format = _format(body)
    found = [] if format is None else response_format_grammar(format, FORMAT)
    return found[0].grammar if found else None


def wire_names(body: PromptFields) -> dict[str, str]:
    """The client's names for fields that the domain calls otherwise. Without a format, a grammar comes from tools."""
    return {**_NAMES, "grammar": FORMAT if _format(body) is not None else "tools"}


def _format(body: PromptFields) -> dict[str, Any] | None:
    return None if body.output_config is None else body.output_config.format


def reasoning_limit(body: MessagesRequest) -> ReasoningLimit | None:
    """Raises InvalidRequest."""
    thinking = body.thinking
    if thinking is not None and thinking.type == "disabled":
        return NO_REASONING
    if thinking is None or thinking.type != "enabled" or thinking.budget_tokens is None:
        return None
    return ReasoningLimit(thinking.budget_tokens, is_firm=False)


def sampling_params(body: MessagesRequest) -> SamplingParams:
    """Raises InvalidRequest."""
    return SamplingParams.chosen(temperature=body.temperature, top_p=body.top_p, top_k=body.top_k)


def stop_rules(body: MessagesRequest) -> StopRules:
    """Raises InvalidRequest."""
    return StopRules(body.max_tokens, stop=tuple(body.stop_sequences or ()), fits_room=True)
