"""Tools on the wire as tools of the model's template.

Those that a server would run (`web_search_20250305`, ...) have no schema and become nothing: agents offer them always.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from domain.errors import InvalidRequest
from domain.request.chat import CallMode, Json, ToolChoice, ToolSpec, named_tool
from domain.shown import shown
from interfaces.http.incoming.json_body import converted


class Tool(Struct):
    """Whatever else a tool has (`cache_control`, `defer_loading`, ...) stays out of the prompt."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class ToolChoiceParam(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


_MODES = {"auto": CallMode.AUTO, "none": CallMode.NONE, "any": CallMode.REQUIRED}


def tool_choice(choice: ToolChoiceParam | None) -> ToolChoice:
    """Raises InvalidRequest, naming the field."""
    if choice is None:
        return ToolChoice()
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequest("tool_choice.name is missing", param="tool_choice.name")
        return named_tool(choice.name)
    mode = _MODES.get(choice.type)
    if mode is None:
        raise InvalidRequest(
            f"tool_choice.type {shown(choice.type)!r} is none of auto, any, tool and none", param="tool_choice.type"
        )
    return ToolChoice(mode, one_call=choice.disable_parallel_tool_use is True)


def tool_specs(tools: Sequence[Mapping[str, Any]]) -> tuple[ToolSpec, ...]:
    """What the model is shown. Raises InvalidRequest, naming `tools[i].field`."""
    own = [(index, tool) for index, tool in enumerate(tools) if not _is_hosted(tool)]
    return tuple(_spec(converted(tool, Tool, f"tools[{index}]")) for index, tool in own)


def _is_hosted(tool: Mapping[str, Any]) -> bool:
    return "input_schema" not in tool and tool.get("type") not in (None, "custom")


def _spec(tool: Tool) -> ToolSpec:
    return ToolSpec(tool.name, tool.description or "", cast("dict[str, Json]", tool.input_schema), tool.strict is True)
