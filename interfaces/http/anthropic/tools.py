"""Tools on the wire as tools of the model's template.

Those that a server would run (`web_search_20250305`, ...) have no schema and become nothing: agents offer them always.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from domain.chat import Json, ToolSpec
from domain.errors import InvalidRequest
from domain.shown import shown
from interfaces.http.by_type import converted


class Tool(Struct):
    """Whatever else a tool has (`cache_control`, `strict`, `defer_loading`, ...) stays out of the prompt."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class ToolChoice(Struct):
    type: str
    name: str | None = None


def tool_specs(tools: Sequence[Mapping[str, Any]], choice: ToolChoice | None) -> tuple[ToolSpec, ...]:
    """What the model is shown. Raises InvalidRequest, naming `tools[i].field` or `tool_choice`."""
    if choice is not None and choice.type == "none":
        return ()
    if choice is not None and choice.type != "auto":
        raise InvalidRequest(
            f"tool_choice {shown(choice.type)} is not supported yet: nothing forces a call; use auto or none",
            param="tool_choice.type",
        )
    own = [(index, tool) for index, tool in enumerate(tools) if not _is_hosted(tool)]
    return tuple(_spec(converted(tool, Tool, f"tools[{index}]")) for index, tool in own)


def _is_hosted(tool: Mapping[str, Any]) -> bool:
    return "input_schema" not in tool and tool.get("type") not in (None, "custom")


def _spec(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, tool.description or "", cast("dict[str, Json]", tool.input_schema))


__all__ = ("Tool", "ToolChoice", "tool_specs")
