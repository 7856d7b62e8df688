"""The items of an answer, each from its opening to its end, as the events that a stream sends.

    output_item.added (content_part.added)? delta* done (content_part.done)? output_item.done

A call that the token limit cut off has no `output_item.done`: clients run what is done, whatever its status says.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from interfaces.http.fields.custom_tools import CustomInput
from interfaces.http.responses.compaction import Compacting
from interfaces.http.responses.tools import WireTool

Event: TypeAlias = dict[str, Any]
Logprobs: TypeAlias = Sequence[dict[str, Any]]

IN_PROGRESS: Final = "in_progress"
COMPLETED: Final = "completed"
INCOMPLETE: Final = "incomplete"


class OutputItem(ABC):
    """One item, fed the pieces of one part of the answer: text, or a call's arguments."""

    def __init__(self, id: str, index: int) -> None:
        self._id = id
        self._index = index
        self._at = {"item_id": id, "output_index": index}
        self._pieces: list[str] = []

    @abstractmethod
    def opening(self) -> list[Event]: ...

    @abstractmethod
    def feed(self, piece: str, logprobs: Logprobs = ()) -> list[Event]:
        """The next piece. `logprobs`: of its tokens, for text where they were requested."""
        ...

    @abstractmethod
    def closing(self, status: str) -> list[Event]:
        """The events after the last piece; call it before `body` with the same status."""
        ...

    @abstractmethod
    def body(self, status: str) -> dict[str, Any]: ...

    def _event(self, name: str, item: dict[str, Any]) -> Event:
        return item_event(name, self._index, item)


class _TextOutput(OutputItem):
    """Text as one part of the item. `_text_event`, `_part_event`: the names of its events; `_place`: the key of the
    part's index in them."""

    _text_event: str
    _part_event: str = "response.content_part"
    _place: str = "content_index"

    def opening(self) -> list[Event]:
        return [self._event("added", self._item(IN_PROGRESS, [])), self._part_of("added", "")]

    def feed(self, piece: str, logprobs: Logprobs = ()) -> list[Event]:
        self._pieces.append(piece)
        return [self._text("delta", delta=piece)]

    def closing(self, status: str) -> list[Event]:
        text = "".join(self._pieces)
        done = self._event("done", self.body(status))
        return [self._text("done", text=text), self._part_of("done", text), done]

    def body(self, status: str) -> dict[str, Any]:
        return self._item(status, [self._part("".join(self._pieces))])

    @abstractmethod
    def _part(self, text: str) -> dict[str, Any]: ...

    @abstractmethod
    def _item(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]: ...

    def _text(self, name: str, **fields: str) -> Event:
        return {"type": f"{self._text_event}.{name}", **self._at, self._place: 0, **fields}

    def _part_of(self, name: str, text: str) -> Event:
        return {"type": f"{self._part_event}.{name}", **self._at, self._place: 0, "part": self._part(text)}


class MessageOutput(_TextOutput):
    """The text of an answer."""

    _text_event = "response.output_text"

    def __init__(self, id: str, index: int) -> None:
        super().__init__(id, index)
        self._logprobs: list[dict[str, Any]] = []

    def feed(self, piece: str, logprobs: Logprobs = ()) -> list[Event]:
        self._logprobs += logprobs
        return [{**event, "logprobs": list(logprobs)} for event in super().feed(piece)]

    def closing(self, status: str) -> list[Event]:
        text_done, *rest = super().closing(status)
        return [{**text_done, "logprobs": self._logprobs}, *rest]

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._logprobs)}

    def _item(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": parts}


class ReasoningOutput(_TextOutput):
    """Reasoning as content, or as a summary for clients that request one: they show nothing else. `handle` names the
    item."""

    def __init__(self, id: str, index: int, *, is_summary: bool, handle: str | None) -> None:
        super().__init__(id, index)
        self._is_summary = is_summary
        self._handle = handle
        self._text_event = "response.reasoning_text"
        if is_summary:
            self._text_event, self._part_event = "response.reasoning_summary_text", "response.reasoning_summary_part"
            self._place = "summary_index"

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text" if self._is_summary else "reasoning_text", "text": text}

    def _item(self, status: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        shown = {"summary": parts} if self._is_summary else {"summary": [], "content": parts}
        handle = {} if self._handle is None else {"encrypted_content": self._handle}
        return {"id": self._id, "type": "reasoning", "status": status, **shown, **handle}


class CallOutput(OutputItem):
    """A call of a function with its arguments, or of a custom tool with its text."""

    def __init__(self, id: str, index: int, call_id: str, tool: WireTool) -> None:
        super().__init__(id, index)
        self._call_id = call_id
        self._tool = tool
        self._input = CustomInput() if tool.is_custom else None
        self._shown: list[str] = []
        self._name = "custom_tool_call_input" if tool.is_custom else "function_call_arguments"
        self._field = "input" if tool.is_custom else "arguments"

    def opening(self) -> list[Event]:
        return [self._event("added", self._item(IN_PROGRESS, ""))]

    def feed(self, piece: str, logprobs: Logprobs = ()) -> list[Event]:
        self._pieces.append(piece)
        return self._delta(piece if self._input is None else self._input.feed(piece))

    def closing(self, status: str) -> list[Event]:
        rest = [] if self._input is None else self._delta(self._input.finish())
        if status == INCOMPLETE and not _is_json("".join(self._pieces) or self._default):
            return rest
        name = {} if self._tool.is_custom else {"name": self._tool.name}
        done = {"type": f"response.{self._name}.done", **self._at, **name, self._field: self._value}
        return [*rest, done, self._event("done", self.body(status))]

    def body(self, status: str) -> dict[str, Any]:
        return self._item(status, self._value)

    @property
    def _default(self) -> str:
        return "{}" if self._input is None else ""

    @property
    def _value(self) -> str:
        return "".join(self._shown) or self._default

    def _delta(self, text: str) -> list[Event]:
        if not text:
            return []
        self._shown.append(text)
        return [{"type": f"response.{self._name}.delta", **self._at, "delta": text}]

    def _item(self, status: str, value: str) -> dict[str, Any]:
        tool = self._tool
        kind = {"type": "custom_tool_call"} if tool.is_custom else {"type": "function_call", "status": status}
        namespace = {"namespace": tool.namespace} if tool.namespace else {}
        return {"id": self._id, **kind, "call_id": self._call_id, "name": tool.name, **namespace, self._field: value}


class CompactionOutput(OutputItem):
    """The summary that replaces a conversation; nothing of it is shown before its end. An incomplete one says so."""

    def __init__(self, id: str, index: int, work: Compacting) -> None:
        super().__init__(id, index)
        self._work = work

    def opening(self) -> list[Event]:
        return [self._event("added", {"id": self._id, "type": "compaction", "encrypted_content": ""})]

    def feed(self, piece: str, logprobs: Logprobs = ()) -> list[Event]:
        self._pieces.append(piece)
        return []

    def closing(self, status: str) -> list[Event]:
        return [self._event("done", self.body(status))]

    def body(self, status: str) -> dict[str, Any]:
        return self._work.item(self._id, "".join(self._pieces), is_cut=status == INCOMPLETE)


def item_event(name: str, index: int, item: dict[str, Any]) -> Event:
    return {"type": f"response.output_item.{name}", "output_index": index, "item": item}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
