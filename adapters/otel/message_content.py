"""The messages of a request for its span, if OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for them.

Messages are JSON as the GenAI conventions have them: a role and parts. Each attribute is bounded: of a long
conversation the last messages are kept, of a long text its beginning, of many parts the first ones, and
`cairn.content.omitted` counts the characters that are missing.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.otel import semconv as names
from adapters.otel.span_attributes import Attributes, encodable
from domain.ids import RequestId
from domain.request.chat import SYSTEM_ROLES, ChatMessage
from domain.request.request import ChatPrompt, Prompt, TextPrompt
from domain.request.stream import ContentDelta, ReasoningDelta, ToolCallDelta

MAX_CHARS = 16_384
"""The bound on text in one attribute."""

MAX_PLACES = 512
"""The bound on messages, parts and calls in one attribute: empty ones take room too."""

MAX_OPEN = 512

_Part = dict[str, Any]

_logger = logging.getLogger("cairn.telemetry")


class _Room:
    """The room left in one attribute, and the count of characters that did not fit."""

    def __init__(self, max_chars: int) -> None:
        self._left = max_chars
        self._places_left = MAX_PLACES
        self.num_omitted = 0

    def place_for(self, text: str) -> bool:
        """Take a place for `text`; False if there is none, and `text` is counted as omitted."""
        if self._places_left == 0:
            self.num_omitted += len(text)
            return False
        self._places_left -= 1
        return True

    def take(self, text: str) -> str:
        kept = text[: self._left]
        self._left -= len(kept)
        self.num_omitted += len(text) - len(kept)
        return encodable(kept, len(kept))

    @property
    def is_full(self) -> bool:
        return self._left <= 0


@dataclass(slots=True)
class _Piece:
    """A run of deltas of one kind. `id` and `name`: of a tool call."""

    kind: type[ContentDelta]
    index: int
    id: str = ""
    name: str = ""
    text: str = ""

    def as_part(self) -> _Part:
        if self.kind is ToolCallDelta:
            return {"type": "tool_call", "id": self.id, "name": self.name, "arguments": self.text}
        return {"type": "reasoning" if self.kind is ReasoningDelta else "text", "content": self.text}


@dataclass(slots=True)
class _Said:
    asked: Attributes
    room: _Room
    answer: list[_Piece] = field(default_factory=list[_Piece])


class MessageContent:
    """A ContentSink. Past `max_open` the oldest request's content is forgotten."""

    def __init__(self, max_chars: int = MAX_CHARS, max_open: int = MAX_OPEN) -> None:
        self._max_chars = max_chars
        self._max_open = max_open
        self._said: OrderedDict[RequestId, _Said] = OrderedDict()
        self._has_failed = False

    def asked(self, id: RequestId, prompt: Prompt) -> None:
        self._attempt(lambda: self._asked(id, prompt))

    def answered(self, id: RequestId, delta: ContentDelta) -> None:
        self._attempt(lambda: self._answered(id, delta))

    def take(self, id: RequestId, reason: str) -> Attributes:
        """Remove and return the messages of both sides, for a request that ended for `reason`."""
        said = self._said.pop(id, None)
        if said is None:
            return {}
        answer = {"role": "assistant", "parts": [piece.as_part() for piece in said.answer], "finish_reason": reason}
        attributes = {**said.asked, names.GEN_AI_OUTPUT_MESSAGES: _json([answer])}
        if said.room.num_omitted:
            before = attributes.get(names.CAIRN_OMITTED, 0)
            attributes[names.CAIRN_OMITTED] = said.room.num_omitted + (before if isinstance(before, int) else 0)
        return attributes

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.error("content could not be taken for a trace; later failures are not reported", exc_info=error)

    def _asked(self, id: RequestId, prompt: Prompt) -> None:
        self._said[id] = _Said(_prompt_attributes(prompt, self._max_chars), _Room(self._max_chars))
        if len(self._said) > self._max_open:
            self._said.popitem(last=False)

    def _answered(self, id: RequestId, delta: ContentDelta) -> None:
        said = self._said.get(id)
        if said is None:
            return
        index = delta.index if isinstance(delta, ToolCallDelta) else 0
        last = said.answer[-1] if said.answer else None
        if last is None or (last.kind, last.index) != (type(delta), index):
            if not _text_of(delta) and not isinstance(delta, ToolCallDelta):
                return
            if not said.room.place_for(_text_of(delta)):
                return
            last = _Piece(type(delta), index)
            said.answer.append(last)
        if isinstance(delta, ToolCallDelta) and delta.id:
            last.id, last.name = said.room.take(delta.id), said.room.take(delta.name)
        last.text += said.room.take(_text_of(delta))


def _prompt_attributes(prompt: Prompt, max_chars: int) -> Attributes:
    attributes: Attributes = {}
    room = _Room(max_chars)
    if isinstance(prompt, ChatPrompt):
        instructions = [message for message in prompt.messages if message.role in SYSTEM_ROLES]
        said = [message for message in prompt.messages if message.role not in SYSTEM_ROLES]
        attributes[names.GEN_AI_INPUT_MESSAGES] = _json(_latest(said, room))
        if instructions:
            own = _Room(max_chars)
            parts = [
                {"type": "text", "content": own.take(message.content)}
                for message in instructions
                if own.place_for(message.content)
            ]
            attributes[names.GEN_AI_SYSTEM_INSTRUCTIONS] = _json(parts)
            room.num_omitted += own.num_omitted
        if prompt.tools:
            own = _Room(max_chars)
            tools = [
                {"type": "function", "name": own.take(tool.name), "description": own.take(tool.description)}
                for tool in prompt.tools
                if not own.is_full and own.place_for(tool.description)
            ]
            attributes[names.GEN_AI_TOOL_DEFINITIONS] = _json(tools)
            room.num_omitted += own.num_omitted
    elif isinstance(prompt, TextPrompt):
        part = {"type": "text", "content": room.take(prompt.text)}
        attributes[names.GEN_AI_INPUT_MESSAGES] = _json([{"role": "user", "parts": [part]}])
    if room.num_omitted:
        attributes[names.CAIRN_OMITTED] = room.num_omitted
    return attributes


def _latest(messages: Sequence[ChatMessage], room: _Room) -> list[Mapping[str, Any]]:
    """The last messages that fit."""
    kept: list[Mapping[str, Any]] = []
    for message in reversed(messages):
        if room.is_full:
            room.num_omitted += len(message.content)
        elif room.place_for(message.content):
            kept.append({"role": message.role.value, "parts": _parts(message, room)})
    return kept[::-1]


def _parts(message: ChatMessage, room: _Room) -> list[_Part]:
    parts: list[_Part] = []
    if message.tool_call_id is not None:
        id, response = message.tool_call_id, room.take(message.content)
        return [{"type": "tool_call_response", "id": room.take(id), "response": response}]
    if message.reasoning:
        parts.append({"type": "reasoning", "content": room.take(message.reasoning)})
    if message.content:
        parts.append({"type": "text", "content": room.take(message.content)})
    for call in message.tool_calls:
        if not room.place_for(call.arguments):
            continue
        id, name, arguments = (room.take(text) for text in (call.id, call.name, call.arguments))
        parts.append({"type": "tool_call", "id": id, "name": name, "arguments": arguments})
    return parts


def _text_of(delta: ContentDelta) -> str:
    return delta.arguments if isinstance(delta, ToolCallDelta) else delta.text


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
