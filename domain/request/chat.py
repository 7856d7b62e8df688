"""A conversation as the chat template sees it, free of any dialect's wire shape: messages, tools and tool choice.

Clients return tool calls re-serialised, reordered or trimmed. Rendered so, the next prompt would diverge from the
prefix that was computed at the first call. `with_generated` puts the generated text back, so that the prefix matches.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value. Treated as immutable once it is inside a domain value."""


class Role(Enum):
    """Who speaks. `developer` is mapped to `system` for templates that do not know it."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


SYSTEM_ROLES = frozenset({Role.SYSTEM, Role.DEVELOPER})
"""Those who instruct the model, wherever in the conversation they speak."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made in an earlier turn. `arguments` is the JSON text exactly as the client sent it; with
    `is_generated`, exactly as the model wrote it, and it is rendered so."""

    id: str
    name: str
    arguments: str
    is_generated: bool = False


_ERROR_OPENINGS = ("error", "<tool_use_error>")
_ERROR_CHARS = max(map(len, _ERROR_OPENINGS))


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. `content` is plain text: dialects flatten text parts and refuse other media before this point.

    `is_error`: this result of a tool tells that the call failed.
    """

    role: Role
    content: str = ""
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False

    @property
    def told(self) -> str:
        """The content as a model has to read it where nothing else tells it of a failure."""
        if not self.is_error or self.content.lstrip()[:_ERROR_CHARS].lower().startswith(_ERROR_OPENINGS):
            return self.content
        return f"Error: {self.content}"


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """What a tool's text has to match: a grammar in this syntax, `lark` or `regex`."""

    syntax: str
    definition: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call. `parameters` is a JSON schema. `strict`: the arguments of a call are held to it.
    `text_grammar`: what its only parameter, a text, is held to where that can be done; it is told in any case."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json])
    strict: bool = False
    text_grammar: TextGrammar | None = None


def num_leading_system(messages: Sequence[ChatMessage]) -> int:
    """How many system messages stand before the first turn."""
    return next((at for at, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages))


def late_system_as_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """System messages after the first turn, told as a user's in the same place and marked as what they are.

    For templates that take system messages at the beginning only. Moving them there instead would change the beginning
    of every later prompt of the conversation.
    """
    lead = num_leading_system(messages)
    return [
        replace(message, role=Role.USER, content=f"<system-reminder>\n{message.content}\n</system-reminder>", name=None)
        if at > lead and message.role in SYSTEM_ROLES
        else message
        for at, message in enumerate(messages)
    ]


class CallMode(Enum):
    """NONE: what looks like a call is text. REQUIRED: at least one call, and no text beside it."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`names`: the only tools that may be called; empty for all. `one_call`: no more than one."""

    mode: CallMode = CallMode.AUTO
    names: tuple[str, ...] = ()
    one_call: bool = False


def named_tool(name: str) -> ToolChoice:
    """One call, of this tool."""
    return ToolChoice(CallMode.REQUIRED, (name,), one_call=True)


@dataclass(frozen=True, slots=True)
class GeneratedCall:
    """`arguments`: the text as generated, valid JSON or not. `reasoning`: what was thought before it; of several calls
    in one turn the first has it. `is_own_id`: the id is ours and unguessable, not one that the model wrote."""

    name: str
    arguments: str
    reasoning: str = ""
    is_own_id: bool = True

    def is_of(self, call: ToolCall) -> bool:
        """Whether this is what the model wrote for a call. Ids that models write (`functions.ls:0`) are no proof: for
        those the arguments must say the same."""
        return call.name == self.name and (self.is_own_id or _value(call.arguments) == _value(self.arguments))


def with_generated(message: ChatMessage, known: Mapping[str, GeneratedCall]) -> ChatMessage:
    """The message with what was generated for it. `known`: by the id of the call."""
    found = {call.id: known[call.id] for call in message.tool_calls if call.id in known and known[call.id].is_of(call)}
    if not found:
        return message
    return replace(
        message,
        reasoning=next((one.reasoning for one in found.values() if one.reasoning), message.reasoning),
        tool_calls=tuple(
            replace(call, arguments=found[call.id].arguments, is_generated=True) if call.id in found else call
            for call in message.tool_calls
        ),
    )


def _value(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
