"""OpenAI's `tool_choice`, as chat completions and responses write it, in the domain's words.

"auto", "none", "required"
{"type": "function", "function": {"name"}}       or with `name` beside `type`; `custom` likewise
{"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}      or with both beside `type`
"""

from collections.abc import Mapping
from typing import Any, NoReturn

from msgspec import Struct, field

from domain.errors import InvalidRequest
from domain.request.chat import CallMode, ToolChoice, named_tool
from domain.shown import shown
from interfaces.http.incoming.json_body import converted

_MODES = {mode.value: mode for mode in CallMode}


class _Name(Struct):
    name: str


class _Tool(Struct):
    type: str = ""
    name: str | None = None
    function: _Name | None = None
    custom: _Name | None = None

    def named(self) -> str:
        inner = self.function or self.custom
        name = self.name if inner is None else inner.name
        if name is None:
            raise InvalidRequest("tool_choice must name a tool", param="tool_choice")
        return name


class _Allowed(Struct):
    mode: str = "auto"
    tools: list[_Tool] = field(default_factory=list[_Tool])


class _Choice(_Tool):
    mode: str = "auto"
    tools: list[_Tool] = field(default_factory=list[_Tool])
    allowed_tools: _Allowed | None = None


def openai_tool_choice(choice: str | Mapping[str, Any] | None, *, one_call: bool) -> ToolChoice:
    """`one_call`: the client takes no parallel calls. Raises InvalidRequest."""
    if choice is None or isinstance(choice, str):
        return ToolChoice(_mode(choice or "auto"), one_call=one_call)
    told = converted(choice, _Choice, "tool_choice")
    if told.type in ("function", "custom"):
        return named_tool(told.named())
    if told.type != "allowed_tools":
        _refuse(told.type)
    allowed = told.allowed_tools or told
    if not allowed.tools:
        raise InvalidRequest("tool_choice allows no tools; use none", param="tool_choice")
    return ToolChoice(_mode(allowed.mode), tuple(tool.named() for tool in allowed.tools), one_call)


def _mode(name: str) -> CallMode:
    return _MODES[name] if name in _MODES else _refuse(name)


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(
        f"tool_choice {shown(what)!r} is not supported; it can be auto, none, required, a function or allowed_tools",
        param="tool_choice",
    )
