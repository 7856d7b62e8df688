"""Messages in the shape chat templates read, and the adjustments some templates need before they accept them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from domain.chat import ChatMessage, Role, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class Adjustments:
    """What is changed about the messages. Nothing, unless a template refuses them as they are.

    `text_arguments`: tool call arguments as JSON text, not as objects. `merged`: consecutive messages of one role
    become one. `short_ids`: tool call ids become nine letters and digits. `text_parts`: content is a list of one part.
    """

    text_arguments: bool = False
    merged: bool = False
    short_ids: bool = False
    text_parts: bool = False


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template's source says of the fields it reads. `reasoning_fields`: where it looks for past reasoning."""

    knows_developer: bool
    reasoning_fields: tuple[str, ...]


def tools_for_template(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """Tools as function definitions; None (which templates test for) when there are none."""
    if not tools:
        return None
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


def messages_for_template(
    messages: Sequence[ChatMessage], traits: TemplateTraits, adjustments: Adjustments
) -> list[dict[str, Any]]:
    """Messages as dictionaries. `developer` becomes `system` for a template that does not know it."""
    if not traits.knows_developer:
        messages = [
            replace(message, role=Role.SYSTEM) if message.role is Role.DEVELOPER else message for message in messages
        ]
    if adjustments.merged:
        messages = merged(messages)
    called = {call.id: call.name for message in messages for call in message.tool_calls}
    return [_message(message, traits, adjustments, called) for message in messages]


def has_runs(messages: Sequence[ChatMessage], traits: TemplateTraits) -> bool:
    """Whether merging would change anything."""
    return len(messages_for_template(messages, traits, Adjustments(merged=True))) < len(messages)


def merged(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Join consecutive messages of one role, except tool results: each of those answers a call of its own."""
    result: list[ChatMessage] = []
    for message in messages:
        if result and message.role is result[-1].role and message.role is not Role.TOOL:
            result[-1] = _joined(result[-1], message)
        else:
            result.append(message)
    return result


def _joined(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    return replace(
        first,
        content="\n\n".join(text for text in (first.content, second.content) if text),
        name=first.name if first.name == second.name else None,
        reasoning="\n\n".join(text for text in (first.reasoning, second.reasoning) if text) or None,
        tool_calls=first.tool_calls + second.tool_calls,
    )


def _message(
    message: ChatMessage, traits: TemplateTraits, adjustments: Adjustments, called: Mapping[str, str]
) -> dict[str, Any]:
    content: Any = message.content
    if adjustments.text_parts:
        content = [{"type": "text", "text": message.content}]
    shaped: dict[str, Any] = {"role": message.role.value, "content": content}
    name = message.name or called.get(message.tool_call_id or "")
    if name is not None:
        shaped["name"] = name
    if message.reasoning is not None:
        shaped.update(dict.fromkeys(traits.reasoning_fields, message.reasoning))
    if message.tool_calls:
        shaped["tool_calls"] = [_tool_call(call, adjustments) for call in message.tool_calls]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = _call_id(message.tool_call_id, adjustments)
    return shaped


def _tool_call(call: ToolCall, adjustments: Adjustments) -> dict[str, Any]:
    arguments: Any = call.arguments
    if not adjustments.text_arguments:
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": _call_id(call.id, adjustments), "type": "function", "function": function}


def _call_id(id: str, adjustments: Adjustments) -> str:
    if adjustments.short_ids and not (len(id) == 9 and id.isascii() and id.isalnum()):
        return hashlib.sha256(id.encode()).hexdigest()[:9]
    return id


__all__ = (
    "Adjustments",
    "TemplateTraits",
    "has_runs",
    "merged",
    "messages_for_template",
    "tools_for_template",
)
