"""A conversation as the chat template sees it, free of any dialect's wire shape."""

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
