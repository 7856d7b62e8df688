"""A conversation as the chat template receives it, independent of any dialect's wire format: messages, tools and tool
choice.

Clients return tool calls re-serialised, reordered or trimmed. Rendered so, the next prompt would diverge from the
prefix that was computed at the first call. `with_generated` puts the generated text back, so that the prefix matches.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from domain.request.file import File
from domain.request.media import Image
from domain.tool_server_names import SEPARATOR

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value. Treated as immutable once it is inside a domain value."""

Media: TypeAlias = Image | File
"""An encoded file in a message, at a place in its text."""


class Role(Enum):
    """The author of a message. `developer` is mapped to `system` for templates that do not know it."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


SYSTEM_ROLES = frozenset({Role.SYSTEM, Role.DEVELOPER})
"""The roles that instruct the model, anywhere in the conversation."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made in an earlier turn. `arguments` is the JSON text exactly as the client sent it; with
    `is_generated`, exactly as the model wrote it, and it is rendered verbatim."""

    id: str
    name: str
    arguments: str
    is_generated: bool = False


_ERROR_OPENINGS = ("error", "<tool_use_error>")
_ERROR_CHARS = max(map(len, _ERROR_OPENINGS))


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. `content` is plain text: dialects flatten text parts.

    `media`: ascending by their place in `content`. `is_error`: this result of a tool reports that the call failed.
    """

    role: Role
    content: str = ""
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    media: tuple[Media, ...] = ()

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple([one for one in self.media if isinstance(one, Image)])

    @property
    def for_model(self) -> "ChatMessage":
        """The message, with the failure of a tool call spelled out where the content does not mention it."""
        if not self.is_error or self.content.lstrip()[:_ERROR_CHARS].lower().startswith(_ERROR_OPENINGS):
            return self
        return self.framed("Error: ")

    @property
    def pieces(self) -> Iterator[str | Media]:
        """The content's text and media in order, without empty texts."""
        start = 0
        for one in self.media:
            if text := self.content[start : one.at]:
                yield text
            yield one
            start = one.at
        if text := self.content[start:]:
            yield text

    def framed(self, before: str, after: str = "") -> "ChatMessage":
        """Returns the message with text around its content."""
        media = tuple([replace(one, at=one.at + len(before)) for one in self.media])
        return replace(self, content=f"{before}{self.content}{after}", media=media)

    def with_media(self, instead: Sequence[Media | str]) -> "ChatMessage":
        """Returns the message with something else in place of each of its media: another one, or text in lines of its
        own."""
        others = iter(instead)
        pieces = [piece if isinstance(piece, str) else next(others) for piece in self.pieces]
        shown = message_of(self.role, pieces, between="\n")
        return replace(self, content=shown.content, media=shown.media)


def message_of(role: Role, pieces: Sequence[str | Media], between: str = "") -> ChatMessage:
    """Returns a message of texts, with `between` neighbouring ones, and media. Empty texts are left out."""
    content, media, follows_text = "", list[Media](), False
    for piece in pieces:
        if not isinstance(piece, str):
            media.append(replace(piece, at=len(content)))
            follows_text = False
        elif piece:
            content += between + piece if follows_text else piece
            follows_text = True
    return ChatMessage(role, content, media=tuple(media))


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """A grammar that a tool's text has to match. `syntax`: `lark` or `regex`."""

    syntax: str
    definition: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool the model may call. `parameters` is a JSON schema. `strict`: it constrains the arguments of a call.
    `text_grammar` constrains its only parameter, a text, where it is supported; the prompt contains it in any case."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] = field(default_factory=dict[str, Json])
    strict: bool = False
    text_grammar: TextGrammar | None = None


def num_leading_system(messages: Sequence[ChatMessage]) -> int:
    """Returns the number of system messages before the first turn."""
    return next((at for at, message in enumerate(messages) if message.role not in SYSTEM_ROLES), len(messages))


def system_in_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Returns the messages with system messages at the beginning before the text of the first message of a user, as the
    makers of models without a system role advise; as a message of the user where none follows."""
    lead = num_leading_system(messages)
    text = "\n\n".join(message.content for message in messages[:lead])
    turns = list(messages[lead:])
    if not text:
        return turns
    if turns and turns[0].role is Role.USER:
        return [turns[0].framed(f"{text}\n\n"), *turns[1:]]
    return [ChatMessage(Role.USER, text), *turns]


def late_system_as_user(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Returns the messages with system messages after the first turn as a user's, in the same place and marked.

    For templates that accept system messages at the beginning only. Moving them there instead would change the
    beginning of every later prompt of the conversation.
    """
    lead = num_leading_system(messages)
    return [
        replace(message.framed("<system-reminder>\n", "\n</system-reminder>"), role=Role.USER, name=None)
        if at > lead and message.role in SYSTEM_ROLES
        else message
        for at, message in enumerate(messages)
    ]


class CallMode(Enum):
    """The calls that an answer may hold. NONE: none, and text that looks like a call stays text. REQUIRED: at least
    one, and no text beside it."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """The tools that an answer may call. `names`: the only ones; empty for all. `one_call`: no more than one call.

    The prompt shows all tools in any case, so that a prefix does not change with the choice."""

    mode: CallMode = CallMode.AUTO
    names: tuple[str, ...] = ()
    one_call: bool = False


def named_tool(name: str) -> ToolChoice:
    """Returns the choice of one call, of this tool."""
    return ToolChoice(CallMode.REQUIRED, (name,), one_call=True)


@dataclass(frozen=True, slots=True)
class GeneratedCall:
    """A tool call as the model wrote it. `arguments`: the text, valid JSON or not. `reasoning`: the reasoning before
    it; of several calls in one turn the first has it. `is_own_id`: the server made the id, which cannot be guessed."""

    name: str
    arguments: str
    reasoning: str = ""
    is_own_id: bool = True

    def is_of(self, call: ToolCall) -> bool:
        """Returns True if the model wrote this for the call. An id that models write (`functions.ls:0`) is no proof:
        with one the arguments must have equal values. Models leave out the namespace or the server of a tool."""
        is_name = call.name == self.name or call.name.endswith(f"{SEPARATOR}{self.name}")
        return is_name and (self.is_own_id or _value(call.arguments) == _value(self.arguments))


def with_generated(message: ChatMessage, known: Mapping[str, GeneratedCall]) -> ChatMessage:
    """Returns the message with the generated names, arguments and reasoning of its calls. `known`: by the id of the
    call."""
    found = {call.id: known[call.id] for call in message.tool_calls if call.id in known and known[call.id].is_of(call)}
    if not found:
        return message
    return replace(
        message,
        reasoning=next((one.reasoning for one in found.values() if one.reasoning), message.reasoning),
        tool_calls=tuple(
            call
            if (own := found.get(call.id)) is None
            else ToolCall(call.id, own.name, own.arguments, is_generated=True)
            for call in message.tool_calls
        ),
    )


def _value(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
