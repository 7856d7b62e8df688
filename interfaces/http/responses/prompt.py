"""What a body asks for, in the domain's words."""

from dataclasses import replace
from typing import Any

from domain.request.chat import ChatMessage, Json, Role
from domain.request.grammar import Grammar
from domain.request.reasoning_budget import NO_REASONING, ReasoningLimit
from domain.request.request import ChatPrompt
from domain.request.sampling import SamplingParams, StopRules
from interfaces.http.fields.grammar_fields import response_format_grammar
from interfaces.http.fields.parameters import refuse_unsupported
from interfaces.http.fields.sampling_fields import thinking_kwargs
from interfaces.http.fields.tool_choices import openai_tool_choice
from interfaces.http.responses.conversation import conversation, tools_in
from interfaces.http.responses.resolved import earlier_items
from interfaces.http.responses.responses_request import ResponsesRequest
from interfaces.http.responses.tools import Tools

FORMAT = "text.format"
_NAMES = {"messages": "input", "max_tokens": "max_output_tokens"}


def chat_prompt(body: ResponsesRequest) -> ChatPrompt:
    """Raises InvalidRequest for whatever the body asks for that cannot be had."""
    refuse_unsupported(body)
    instructions = [ChatMessage(Role.SYSTEM, body.instructions)] if body.instructions else []
    messages, tools = (*instructions, *conversation(body.input, earlier_items(body))), tools_of(body)
    choice = openai_tool_choice(body.tool_choice, one_call=body.parallel_tool_calls is False)
    choice = replace(choice, names=tuple(map(tools.template_name, choice.names)))
    return ChatPrompt(messages, tools.specs, _template_kwargs(body), choice)


def grammar(body: ResponsesRequest) -> Grammar | None:
    """Raises InvalidRequest."""
    format = _format(body)
    found = [] if format is None else response_format_grammar(format, FORMAT)
    return found[0].grammar if found else None


def tools_of(body: ResponsesRequest) -> Tools:
    """All that the body names, also in its input. Raises InvalidRequest."""
    named = [(f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ())]
    return Tools([*named, *tools_in(earlier_items(body)), *tools_in(body.input)])


def wire_names(body: ResponsesRequest) -> dict[str, str]:
    """The client's names for fields that the domain calls otherwise. Without a format, a grammar comes from tools."""
    return {**_NAMES, "grammar": FORMAT if _format(body) is not None else "tools"}


def _format(body: ResponsesRequest) -> dict[str, Any] | None:
    return None if body.text is None else body.text.format


def sampling_params(body: ResponsesRequest) -> SamplingParams:
    """Raises InvalidRequest."""
    return SamplingParams.chosen(temperature=body.temperature, top_p=body.top_p, seed=body.seed)


def stop_rules(body: ResponsesRequest) -> StopRules:
    """Raises InvalidRequest."""
    return StopRules(body.max_output_tokens, fits_room=True)


def reasoning_limit(body: ResponsesRequest) -> ReasoningLimit | None:
    """The effort `none` is a budget of no tokens, for templates that have no switch."""
    is_none = body.reasoning is not None and body.reasoning.effort == "none"
    return NO_REASONING if is_none else None


def _template_kwargs(body: ResponsesRequest) -> dict[str, Json]:
    effort = None if body.reasoning is None else body.reasoning.effort
    if effort is None:
        return {}
    return thinking_kwargs(effort != "none", None if effort == "none" else effort)
