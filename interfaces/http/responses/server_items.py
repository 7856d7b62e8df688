"""The output items of servers' tools, as the events that a stream sends.

    mcp_list_tools         added, in_progress, completed | failed, done
    mcp_call               added, in_progress, arguments.delta*, arguments.done, the call, completed | failed, done
    mcp_approval_request   added, done

A call that was not run has no `output_item.done`, and its status is `incomplete`.
"""

from collections.abc import Sequence
from typing import Any

from domain.request.server_calls import CallOutcome, OfferedTool
from interfaces.http.responses.output_items import (
    IN_PROGRESS,
    INCOMPLETE,
    Event,
    Logprobs,
    OutputItem,
    item_event,
)
from interfaces.http.responses.server_tools import call_body


class ServerCallOutput(OutputItem):
    """A call that the server runs. `close` ends its arguments, `ended` the call."""

    def __init__(self, id: str, index: int, call_id: str, tool: OfferedTool) -> None:
        super().__init__(id, index)
        self.call_id = call_id
        self.index = index
        self._tool = tool

    def opening(self) -> list[Event]:
        return [self._event("added", self._item("", IN_PROGRESS)), self._state("in_progress")]

    def feed(self, piece: str, logprobs: Logprobs = ()) -> list[Event]:
        self._pieces.append(piece)
        return [{"type": "response.mcp_call_arguments.delta", **self._at, "delta": piece}] if piece else []

    def closing(self, status: str) -> list[Event]:
        if status == INCOMPLETE:
            return []
        return [{"type": "response.mcp_call_arguments.done", **self._at, "arguments": self._arguments}]

    def ended(self, outcome: CallOutcome) -> tuple[list[Event], dict[str, Any]]:
        """The events of the call's end, and the item."""
        item = self._item(self._arguments, IN_PROGRESS, outcome)
        return [self._state(item["status"]), self._event("done", item)], item

    def body(self, status: str) -> dict[str, Any]:
        """The item of a call that was not run."""
        return self._item(self._arguments, INCOMPLETE)

    @property
    def _arguments(self) -> str:
        return "".join(self._pieces) or "{}"

    def _item(self, arguments: str, status: str, outcome: CallOutcome | None = None) -> dict[str, Any]:
        return call_body(self._id, self._tool, arguments, outcome, status)

    def _state(self, name: str) -> Event:
        return {"type": f"response.mcp_call.{name}", **self._at}


class ApprovalOutput(OutputItem):
    """A call that the client has to approve, shown once its arguments are whole."""

    def __init__(self, id: str, index: int, tool: OfferedTool) -> None:
        super().__init__(id, index)
        self._tool = tool

    def opening(self) -> list[Event]:
        return []

    def feed(self, piece: str, logprobs: Logprobs = ()) -> list[Event]:
        self._pieces.append(piece)
        return []

    def closing(self, status: str) -> list[Event]:
        item = self.body(status)
        return [] if status == INCOMPLETE else [self._event("added", item), self._event("done", item)]

    def body(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "mcp_approval_request",
            "server_label": self._tool.server,
            "name": self._tool.name,
            "arguments": "".join(self._pieces) or "{}",
        }


def whole_items(items: Sequence[dict[str, Any]], start: int = 0) -> list[Event]:
    """The events of items that are complete from the beginning. `start`: the index of the first."""
    return [event for index, item in enumerate(items, start) for event in _whole(index, item)]


def _whole(index: int, item: dict[str, Any]) -> list[Event]:
    at = {"item_id": item["id"], "output_index": index}
    kind, between = item["type"], list[Event]()
    begun: dict[str, Any] = item
    if kind in ("mcp_list_tools", "mcp_call"):
        end = "completed" if item["error"] is None else "failed"
        between = [{"type": f"response.{kind}.{name}", **at} for name in ("in_progress", end)]
    if kind == "mcp_list_tools":
        begun = {**item, "tools": [], "error": None}
    elif kind == "mcp_call":
        begun = {**item, "arguments": "", "output": None, "error": None, "status": IN_PROGRESS}
        arguments, name = item["arguments"], "response.mcp_call_arguments"
        between[1:1] = [
            {"type": f"{name}.delta", **at, "delta": arguments},
            {"type": f"{name}.done", **at, "arguments": arguments},
        ]
    return [item_event("added", index, begun), *between, item_event("done", index, item)]
