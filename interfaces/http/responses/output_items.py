"""The items of an answer, each from its opening to its end, as the events that a stream sends.

    output_item.added (content_part.added)? delta* done (content_part.done)? output_item.done

A call that the token limit cut off has no `output_item.done`: clients run what is done, whatever its status says.

The text of a custom tool's call is read out of its generated arguments, `{"input": "..."}`, piece by piece:

    START --`{"input":"`--> TEXT --`"`--> DONE        an escape inside TEXT waits until it is complete
    START --anything else--> OTHER                    arguments that are no such object are the text, sent at the end
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeAlias

from interfaces.http.responses.tools import WireTool

_OPENING = re.compile(r'\s{0,16}\{\s{0,16}"input"\s{0,16}:\s{0,16}"')
_LONGEST_OPENING = 80
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u(?![dD][89abAB])[0-9a-fA-F]{4}|[^u])", re.S)
_LONGEST_ESCAPE = 12


class CustomInput:
    """`feed` the next characters of the arguments; it returns the next ones of the text."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._waiting = ""
        self._in_text = False
        self._is_done = False

    def feed(self, arguments: str) -> str:
        self._arguments.append(arguments)
        if not self._in_text and (self._is_done or len(self._waiting) > _LONGEST_OPENING):
            return ""
        self._waiting += arguments
        if not self._in_text and (opening := _OPENING.match(self._waiting)):
            self._waiting = self._waiting[opening.end() :]
            self._in_text = True
        return self._text() if self._in_text else ""

    def finish(self) -> str:
        """The rest, once the arguments have ended: all of them where they are no such object."""
        if self._in_text:
            return self._waiting
        return "" if self._is_done else "".join(self._arguments)

    def _text(self) -> str:
        """What is certain of the text so far."""
        told: list[str] = []
        at = 0
        while at < len(self._waiting):
            if plain := _PLAIN.match(self._waiting, at):
                told.append(plain[0])
            elif self._waiting[at] == '"':
                self._in_text, self._is_done = False, True
                break
            else:
                plain = _ESCAPE.match(self._waiting, at)
                if plain is None and len(self._waiting) - at < _LONGEST_ESCAPE:
                    break
                told.append(_unescaped(plain[0]) if plain else self._waiting[at])
            at = plain.end() if plain else at + 1
        self._waiting = "" if self._is_done else self._waiting[at:]
        return "".join(told)


def _unescaped(escape: str) -> str:
    """Half of a surrogate pair, which no encoding has, becomes a question mark."""
    try:
        text = str(json.loads(f'"{escape}"'))
    except ValueError:
        return escape
    return text.encode(errors="replace").decode()


Event: TypeAlias = dict[str, Any]

IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"


class OutputItem(Protocol):
    """Fed the pieces of one part of the answer: text, or a call's arguments."""

    def opening(self) -> list[Event]: ...

    def feed(self, piece: str) -> list[Event]: ...

    def closing(self, status: str) -> list[Event]:
        """After the last piece; before `body` with the same status."""
        ...

    def body(self, status: str) -> dict[str, Any]: ...


class MessageOutput:
    def __init__(self, id: str, index: int) -> None:
        self._id = id
        self._at = {"item_id": id, "output_index": index}
        self._texts: list[str] = []

    def opening(self) -> list[Event]:
        item: dict[str, Any] = {**self.body(IN_PROGRESS), "content": []}
        return [_added(item, self._at), self._part("added", "")]

    def feed(self, piece: str) -> list[Event]:
        self._texts.append(piece)
        return [self._text("delta", delta=piece)]

    def closing(self, status: str) -> list[Event]:
        text = "".join(self._texts)
        return [self._text("done", text=text), self._part("done", text), _done(self.body(status), self._at)]

    def body(self, status: str) -> dict[str, Any]:
        content = [_output_text("".join(self._texts))]
        return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _text(self, what: str, **fields: str) -> Event:
        return {"type": f"response.output_text.{what}", **self._at, "content_index": 0, **fields, "logprobs": []}

    def _part(self, what: str, text: str) -> Event:
        part = _output_text(text)
        return {"type": f"response.content_part.{what}", **self._at, "content_index": 0, "part": part}


class ReasoningOutput:
    """As content, or as a summary for clients that asked for one: they show nothing else. `handle` names the item."""

    def __init__(self, id: str, index: int, *, is_summary: bool, handle: str | None) -> None:
        self._id = id
        self._at = {"item_id": id, "output_index": index}
        self._is_summary = is_summary
        self._handle = handle
        self._texts: list[str] = []
        self._place = {**self._at, "summary_index": 0} if is_summary else {**self._at, "content_index": 0}

    def opening(self) -> list[Event]:
        return [_added(self._item(IN_PROGRESS, []), self._at), self._part("added", "")]

    def feed(self, piece: str) -> list[Event]:
        self._texts.append(piece)
        return [{"type": f"{self._text_event}.delta", **self._place, "delta": piece}]

    def closing(self, status: str) -> list[Event]:
        text = "".join(self._texts)
        told = {"type": f"{self._text_event}.done", **self._place, "text": text}
        return [told, self._part("done", text), _done(self.body(status), self._at)]

    def body(self, status: str) -> dict[str, Any]:
        return self._item(status, [self._part_body("".join(self._texts))])

    def _item(self, status: str, parts: list[dict[str, str]]) -> dict[str, Any]:
        told = {"summary": parts} if self._is_summary else {"summary": [], "content": parts}
        return {
            "id": self._id,
            "type": "reasoning",
            "status": status,
            **told,
            "encrypted_content": self._handle,
        }

    @property
    def _text_event(self) -> str:
        return "response.reasoning_summary_text" if self._is_summary else "response.reasoning_text"

    def _part(self, what: str, text: str) -> Event:
        name = "response.reasoning_summary_part" if self._is_summary else "response.content_part"
        return {"type": f"{name}.{what}", **self._place, "part": self._part_body(text)}

    def _part_body(self, text: str) -> dict[str, str]:
        return {"type": "summary_text" if self._is_summary else "reasoning_text", "text": text}


class FunctionCallOutput:
    def __init__(self, id: str, index: int, call_id: str, tool: WireTool) -> None:
        self._id = id
        self._at = {"item_id": id, "output_index": index}
        self._call_id = call_id
        self._tool = tool
        self._pieces: list[str] = []

    def opening(self) -> list[Event]:
        return [_added({**self.body(IN_PROGRESS), "arguments": ""}, self._at)]

    def feed(self, piece: str) -> list[Event]:
        self._pieces.append(piece)
        return [{"type": "response.function_call_arguments.delta", **self._at, "delta": piece}] if piece else []

    def closing(self, status: str) -> list[Event]:
        if status == INCOMPLETE and not _is_json(self._arguments):
            return []
        told = {"type": "response.function_call_arguments.done", **self._at, "arguments": self._arguments}
        return [told, _done(self.body(status), self._at)]

    def body(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            **_named(self._tool),
            "arguments": self._arguments,
        }

    @property
    def _arguments(self) -> str:
        return "".join(self._pieces) or "{}"


class CustomCallOutput:
    def __init__(self, id: str, index: int, call_id: str, tool: WireTool) -> None:
        self._id = id
        self._at = {"item_id": id, "output_index": index}
        self._call_id = call_id
        self._tool = tool
        self._pieces: list[str] = []
        self._input = CustomInput()
        self._texts: list[str] = []

    def opening(self) -> list[Event]:
        return [_added(self.body(IN_PROGRESS), self._at)]

    def feed(self, piece: str) -> list[Event]:
        self._pieces.append(piece)
        return self._told(self._input.feed(piece))

    def closing(self, status: str) -> list[Event]:
        rest = self._told(self._input.finish())
        if status == INCOMPLETE and not _is_json("".join(self._pieces)):
            return rest
        text = "".join(self._texts)
        told = {"type": "response.custom_tool_call_input.done", **self._at, "input": text}
        return [*rest, told, _done(self.body(status), self._at)]

    def body(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "custom_tool_call",
            "call_id": self._call_id,
            **_named(self._tool),
            "input": "".join(self._texts),
        }

    def _told(self, text: str) -> list[Event]:
        if not text:
            return []
        self._texts.append(text)
        return [{"type": "response.custom_tool_call_input.delta", **self._at, "delta": text}]


def _added(item: Mapping[str, Any], at: Mapping[str, Any]) -> Event:
    return {"type": "response.output_item.added", "output_index": at["output_index"], "item": item}


def _done(item: Mapping[str, Any], at: Mapping[str, Any]) -> Event:
    return {"type": "response.output_item.done", "output_index": at["output_index"], "item": item}


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _named(tool: WireTool) -> dict[str, str]:
    return {"name": tool.name, **({"namespace": tool.namespace} if tool.namespace else {})}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
