"""Checks of an answer's tool calls against their tools: faults are reported beside the calls, never instead of them."""

import json
from collections.abc import Iterable, Sequence

from domain.request.chat import Json, ToolCall, ToolSpec
from domain.request.stream import CallProblem, ContentDelta, ProblemKind, ToolCallDelta
from domain.request.value_check import first_misfit


def joined_calls(deltas: Iterable[ContentDelta]) -> tuple[ToolCall, ...]:
    """Returns the whole calls that an answer's deltas consist of."""
    found: dict[int, tuple[str, str, list[str]]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            _, _, arguments = found.setdefault(delta.index, (delta.id, delta.name, []))
            arguments.append(delta.arguments)
    return tuple(ToolCall(id, name, "".join(arguments)) for id, name, arguments in found.values())


def call_problems(calls: Iterable[ToolCall], tools: Sequence[ToolSpec]) -> tuple[CallProblem, ...]:
    """Returns the gravest problem of each call that has one."""
    by_name = {tool.name: tool for tool in tools}
    problems = ((call, _problem(call, by_name.get(call.name))) for call in calls)
    return tuple(CallProblem(call.id, *problem) for call, problem in problems if problem is not None)


def _problem(call: ToolCall, tool: ToolSpec | None) -> tuple[ProblemKind, str] | None:
    if tool is None:
        return ProblemKind.UNKNOWN_TOOL, f"the tool {call.name!r} is not in tools"
    try:
        arguments: Json = json.loads(call.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = (
            error.msg
            if isinstance(error, json.JSONDecodeError)
            else "it contains NaN or Infinity, or is nested too deeply"
        )
        return ProblemKind.MALFORMED_ARGUMENTS, f"the arguments for {call.name} are not JSON: {reason}"
    if not isinstance(arguments, dict):
        return ProblemKind.MALFORMED_ARGUMENTS, f"the arguments for {call.name} are not a JSON object"
    misfit = first_misfit(arguments, tool.parameters)
    return None if misfit is None else (ProblemKind.SCHEMA_MISMATCH, f"the arguments for {call.name}: {misfit}")


def _refuse(constant: str) -> Json:
    raise ValueError(constant)
