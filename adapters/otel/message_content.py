"""The messages of a request for its span, if OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for them.

Messages are JSON as the GenAI conventions have them: a role and parts. Each attribute is bounded: of a long
conversation the last messages are kept, of a long text its beginning, of many parts the first ones, and
`cairn.content.omitted` counts the characters that are missing.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from adapters.otel import semconv as names
from adapters.otel.span_attributes import Attributes, encodable
from domain.ids import RequestId
from domain.request.chat import SYSTEM_ROLES, ChatMessage, Role
from domain.request.request import ChatPrompt, Prompt, TextPrompt
from domain.request.stream import ContentDelta, ReasoningDelta, ToolCallDelta

MAX_CHARS = 16_384
"""The bound on text in one attribute."""

MAX_PLACES = 512
"""The bound on messages and parts in one attribute: empty ones take room too."""

MAX_OPEN = 512

_logger = logging.getLogger("cairn.telemetry")


class _Room:
    """The room left in one attribute, and the count of characters that did not fit."""

    def __init__(self, max_chars: int) -> None:
        self._chars, self._places, self.num_omitted = max_chars, MAX_PLACES, 0

    def part(self, type: str, **texts: str) -> list[dict[str, Any]]:
        """A part with as much of its texts as there is room for; none without a place for it."""
        if not self.take_place():
            self.num_omitted += sum(map(len, texts.values()))
            return []
        return [{"type": type, **{name: self.take(text) for name, text in texts.items()}}]

    def take_place(self) -> bool:
        """False if there is none."""
        self._places -= 1
        return self._places >= 0 and self._chars > 0

    def take(self, text: str) -> str:
        kept = text[: self._chars]
        self._chars -= len(kept)
        self.num_omitted += len(text) - len(kept)
        return encodable(kept, len(kept))


@dataclass(slots=True)
class _Said:
    """A request's content so far. `run`: kind and index of the answer's last deltas; `open`: their part, if it fits."""

    asked: Attributes
    room: _Room
    num_omitted: int
    answer: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    run: tuple[type[ContentDelta], int] | None = None
    open: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


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
        answer = {"role": "assistant", "parts": said.answer, "finish_reason": reason}
        attributes = {**said.asked, names.GEN_AI_OUTPUT_MESSAGES: _json([answer])}
        if num_omitted := said.num_omitted + said.room.num_omitted:
            attributes["cairn.content.omitted"] = num_omitted
        return attributes

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.error("content could not be taken for a trace; later failures are not reported", exc_info=error)

    def _asked(self, id: RequestId, prompt: Prompt) -> None:
        self._said[id] = _Said(*_prompt_attributes(prompt, self._max_chars))
        if len(self._said) > self._max_open:
            self._said.popitem(last=False)

    def _answered(self, id: RequestId, delta: ContentDelta) -> None:
        said = self._said.get(id)
        if said is None:
            return
        if isinstance(delta, ToolCallDelta):
            index, name, text = delta.index, "arguments", delta.arguments
            begin = partial(said.room.part, "tool_call", id=delta.id, name=delta.name, arguments="")
        else:
            index, name, text = 0, "content", delta.text
            begin = partial(said.room.part, "reasoning" if isinstance(delta, ReasoningDelta) else "text", content="")
        if said.run != (type(delta), index) and (text or name == "arguments"):
            said.run, said.open = (type(delta), index), begin()
            said.answer += said.open
        if not said.open:
            said.room.num_omitted += len(text)
        for part in said.open:
            part[name] += said.room.take(text)


def _prompt_attributes(prompt: Prompt, max_chars: int) -> tuple[Attributes, _Room, int]:
    """The attributes of a prompt, the room for its answer, and how many characters are missing."""
    answer, *rooms = (_Room(max_chars) for _ in range(4))
    if isinstance(prompt, TextPrompt):
        prompt = ChatPrompt((ChatMessage(Role.USER, prompt.text),))
    if not isinstance(prompt, ChatPrompt):
        return {}, answer, 0
    said = [_message(message, rooms[0]) for message in reversed(prompt.messages) if message.role not in SYSTEM_ROLES]
    system = [rooms[1].part("text", content=one.content) for one in prompt.messages if one.role in SYSTEM_ROLES]
    tools = [rooms[2].part("function", name=tool.name, description=tool.description) for tool in prompt.tools]
    found = {names.GEN_AI_INPUT_MESSAGES: said[::-1], names.GEN_AI_SYSTEM_INSTRUCTIONS: system}
    found[names.GEN_AI_TOOL_DEFINITIONS] = tools
    attributes: Attributes = {name: _json([*chain.from_iterable(parts)]) for name, parts in found.items() if parts}
    return attributes, answer, sum(room.num_omitted for room in rooms)


def _message(message: ChatMessage, room: _Room) -> list[dict[str, Any]]:
    """The message with the parts that there is room for; nothing without a place for it."""
    if not room.take_place():
        room.num_omitted += len(message.content)
        return []
    parts: list[dict[str, Any]] = []
    if message.tool_call_id is not None:
        parts += room.part("tool_call_response", id=message.tool_call_id, response=message.content)
    else:
        parts += room.part("reasoning", content=message.reasoning) if message.reasoning else []
        parts += room.part("text", content=message.content) if message.content else []
    for call in message.tool_calls:
        parts += room.part("tool_call", id=call.id, name=call.name, arguments=call.arguments)
    return [{"role": message.role.value, "parts": parts}]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
