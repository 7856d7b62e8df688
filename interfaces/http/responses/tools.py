"""The mapping of tools on the wire to functions of the model's template, and back from a function's name to its tool.

    function                as it is
    custom                  a function with one argument, `input`: text, described by the grammar that it has to match
    namespace               its functions, named `namespace__function`
    mcp                     the tools of a configured server, named `server__tool`
    any other               nothing: a server would run it (web_search, file_search, tool_search, ...)

Two tools of one name are one: the first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from msgspec import Struct

from domain.request.chat import Json, TextGrammar, ToolSpec
from domain.request.server_calls import OfferedTool
from domain.tool_server_names import SEPARATOR
from interfaces.http.answering.server_tools import Offered
from interfaces.http.fields.custom_tools import custom_spec
from interfaces.http.incoming.json_body import by_type


class FunctionTool(Struct):
    """A function. `strict` false and absent are the same."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Grammar(Struct):
    definition: str = ""
    syntax: str = ""


class CustomTool(Struct):
    """A tool that takes text; a grammar is shown to the model, and enforced where the model's form of calls allows
    it."""

    name: str
    description: str | None = None
    format: Grammar | None = None


class NamespaceTool(Struct):
    """Functions and custom tools with a name in common."""

    name: str
    tools: list[dict[str, Any]]


Tool = FunctionTool | CustomTool | NamespaceTool

TOOLS: Mapping[str, type[Tool]] = {"function": FunctionTool, "custom": CustomTool, "namespace": NamespaceTool}


@dataclass(frozen=True, slots=True)
class WireTool:
    """A tool by the client's name for it. `is_custom`: its calls carry text instead of arguments. `server`: the tool of
    a server of tools, which this server calls."""

    name: str
    namespace: str | None = None
    is_custom: bool = False
    server: OfferedTool | None = None


class Tools:
    """All tools of a request, of its `tools` and its input."""

    def __init__(self, named: Sequence[tuple[str, Mapping[str, Any]]], offered: Sequence[Offered] = ()) -> None:
        """`named`: each with its path. `offered`: the tools of servers, after those of the client. Raises
        InvalidRequest, naming the field below it."""
        found: dict[str, tuple[ToolSpec, WireTool]] = {}
        for path, raw in named:
            for spec, wire in _flattened(raw, path, namespace=None):
                found.setdefault(spec.name, (spec, wire))
        for one in offered:
            found.setdefault(one.name, (one.spec, WireTool(one.tool.name, server=one.callable)))
        self.specs = tuple(spec for spec, _ in found.values())
        self._wires = {name: wire for name, (_, wire) in found.items()}
        self._by_last_name = _unambiguous([(wire.name, wire) for wire in self._wires.values()])

    def wire(self, name: str) -> WireTool:
        """The tool that a generated name stands for. A namespace that the model left out is added where only one tool
        can be meant; an unknown name stays as it is."""
        return self._wires.get(name) or self._by_last_name.get(name) or WireTool(name)

    def server_tools(self, label: str, name: str | None = None) -> tuple[str, ...]:
        """The names that the model knows of a server's tools, or of one of them."""
        return tuple(
            known
            for known, wire in self._wires.items()
            if wire.server is not None and wire.server.server == label and name in (None, wire.name)
        )

    @property
    def callable(self) -> dict[str, OfferedTool]:
        """The tools that the server calls, by each name that `wire` finds them by."""
        found = {**self._by_last_name, **self._wires}
        return {name: wire.server for name, wire in found.items() if wire.server is not None}

    def template_name(self, name: str) -> str:
        """A tool's name as the model knows it, from the client's; an unknown name stays as it is."""
        if name in self._wires or name not in self._by_last_name:
            return name
        return template_name(name, self._by_last_name[name].namespace)


def template_name(name: str, namespace: str | None) -> str:
    return f"{namespace}{SEPARATOR}{name}" if namespace else name


def _flattened(raw: Mapping[str, Any], path: str, namespace: str | None) -> Iterator[tuple[ToolSpec, WireTool]]:
    match by_type(raw, TOOLS, path):
        case NamespaceTool(name=name, tools=tools) if namespace is None:
            for index, tool in enumerate(tools):
                yield from _flattened(tool, f"{path}.tools[{index}]", name)
        case FunctionTool() as tool:
            parameters = cast("dict[str, Json]", tool.parameters or {})
            name = template_name(tool.name, namespace)
            yield (
                ToolSpec(name, tool.description or "", parameters, tool.strict is True),
                WireTool(tool.name, namespace),
            )
        case CustomTool() as tool:
            name, format = template_name(tool.name, namespace), tool.format
            grammar = None if format is None else TextGrammar(format.syntax, format.definition)
            yield custom_spec(name, tool.description, grammar), WireTool(tool.name, namespace, is_custom=True)
        case _:
            pass


def _unambiguous(named: Sequence[tuple[str, WireTool]]) -> dict[str, WireTool]:
    counts: dict[str, int] = {}
    for name, _ in named:
        counts[name] = counts.get(name, 0) + 1
    return {name: wire for name, wire in named if counts[name] == 1}
