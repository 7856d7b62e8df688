"""Messages in the shape chat templates read, and the adjustments some templates need before they accept them."""

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapters.tokenizers.template_images import ImageForm
from domain.half_pairs import without_halves
from domain.request.chat import (
    SYSTEM_ROLES,
    ChatMessage,
    Role,
    ToolCall,
    ToolSpec,
    late_system_as_user,
    num_leading_system,
    system_in_user,
)

STAND_IN_NAME = f"cairn-{secrets.token_hex(16)}"
"""The one member of an object that stands for generated arguments, so that they are rendered verbatim whatever filter
the template writes JSON with. Unknown to clients, who therefore cannot write it into a prompt."""

_STAND_IN = re.compile(rf'\{{\s*"{STAND_IN_NAME}"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*\}}')

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""The fields in which templates look for past reasoning."""


@dataclass(frozen=True, slots=True)
class Adjustments:
    """Changes to the messages: none, unless a template refuses them as they are.

    `text_arguments`: tool call arguments as JSON text, not as objects. `merged`: consecutive messages of one role
    become one. `short_ids`: tool call ids become nine letters and digits. `late_as_user`: system messages after the
    first turn become a user's. `text_parts`: content is a list of one part.
    """

    text_arguments: bool = False
    merged: bool = False
    short_ids: bool = False
    late_as_user: bool = False
    text_parts: bool = False


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """The roles that a template reads, and its treatment of system messages and arguments.

    `lacks_system`: it refuses or drops system messages. `displaces_late_system`: those after the first turn are
    dropped or moved without complaint. `drops_second_system`: so is a second one at the beginning. `reads_arguments`:
    it takes a call's arguments apart instead of writing them as JSON.
    """

    knows_developer: bool
    lacks_system: bool = False
    displaces_late_system: bool = False
    drops_second_system: bool = False
    reads_arguments: bool = False


def tools_for_template(tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
    """Returns tools as function definitions; None (which templates test for) when there are none."""
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
    messages: Sequence[ChatMessage],
    traits: TemplateTraits,
    adjustments: Adjustments,
    images: ImageForm | None = None,
) -> list[dict[str, Any]]:
    """Returns messages as dictionaries. `developer` becomes `system` for a template that does not know it. `images`:
    None for messages without any."""
    if not traits.knows_developer:
        messages = [
            replace(message, role=Role.SYSTEM) if message.role is Role.DEVELOPER else message for message in messages
        ]
    if traits.drops_second_system:
        lead = num_leading_system(messages)
        messages = [*merged(messages[:lead]), *messages[lead:]]
    if traits.lacks_system:
        messages = system_in_user(messages)
    if traits.displaces_late_system or adjustments.late_as_user:
        messages = late_system_as_user(messages)
    if adjustments.merged:
        messages = merged(messages)
    called = {call.id: call.name for message in messages for call in message.tool_calls}
    return [
        _message(message, _content(message.for_model, adjustments, images), _name(message, called), traits, adjustments)
        for message in messages
    ]


def has_stand_in(rendered: str) -> bool:
    """Returns True if the template read the members of a call's arguments instead of writing them as JSON."""
    return STAND_IN_NAME in rendered


def without_stand_ins(rendered: str) -> str:
    """Returns the text with generated arguments exactly as the model wrote them."""
    return _STAND_IN.sub(lambda found: str(json.loads(found[1])), rendered)


def has_late_system(messages: Sequence[ChatMessage]) -> bool:
    """Returns True if a system message stands after a turn."""
    return any(message.role in SYSTEM_ROLES for message in messages[num_leading_system(messages) :])


def has_runs(messages: Sequence[ChatMessage]) -> bool:
    """Returns True if merging changes the messages, as they are or with late system messages as a user's."""
    return any(len(merged(one)) < len(one) for one in (messages, late_system_as_user(messages)))


def merged(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Join consecutive messages of one role, except tool results: each of those answers a call of its own. System and
    developer count as one role."""
    result: list[ChatMessage] = []
    for message in messages:
        if result and _merge(result[-1].role, message.role):
            result[-1] = _joined(result[-1], message)
        else:
            result.append(message)
    return result


def _merge(first: Role, second: Role) -> bool:
    return (first is second and first is not Role.TOOL) or {first, second} <= SYSTEM_ROLES


def _joined(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    before = f"{first.content}\n\n" if first.content and second.content else first.content
    joined = second.framed(before)
    return replace(
        first,
        content=joined.content,
        media=first.media + joined.media,
        name=first.name if first.name == second.name else None,
        reasoning="\n\n".join(text for text in (first.reasoning, second.reasoning) if text) or None,
        tool_calls=first.tool_calls + second.tool_calls,
    )


def _name(message: ChatMessage, called: Mapping[str, str]) -> str | None:
    return message.name or called.get(message.tool_call_id or "")


def _content(message: ChatMessage, adjustments: Adjustments, images: ImageForm | None) -> Any:
    content = images.content_of(message) if images is not None and message.images else message.content
    if adjustments.text_parts and isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content


def _message(
    message: ChatMessage, content: Any, name: str | None, traits: TemplateTraits, adjustments: Adjustments
) -> dict[str, Any]:
    shaped: dict[str, Any] = {"role": message.role.value, "content": content}
    if name is not None:
        shaped["name"] = name
    if message.reasoning is not None:
        shaped.update(dict.fromkeys(REASONING_FIELDS, message.reasoning))
    if message.tool_calls:
        shaped["tool_calls"] = [_tool_call(call, traits, adjustments) for call in message.tool_calls]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = _call_id(message.tool_call_id, adjustments)
    return shaped


def _tool_call(call: ToolCall, traits: TemplateTraits, adjustments: Adjustments) -> dict[str, Any]:
    arguments: Any = call.arguments
    if not adjustments.text_arguments and call.is_generated and not traits.reads_arguments:
        arguments = {STAND_IN_NAME: call.arguments}
    elif not adjustments.text_arguments:
        try:
            arguments = json.loads(without_halves(call.arguments.encode()).decode())
        except ValueError:
            arguments = call.arguments
    function = {"name": call.name, "arguments": arguments}
    return {"id": _call_id(call.id, adjustments), "type": "function", "function": function}


def _call_id(id: str, adjustments: Adjustments) -> str:
    if adjustments.short_ids and not (len(id) == 9 and id.isascii() and id.isalnum()):
        return hashlib.sha256(id.encode()).hexdigest()[:9]
    return id
