"""What is wrong with the tool calls of an answer, for whoever runs them: told beside the call, never instead of it."""

import json
from collections.abc import Iterable, Sequence

from domain.output.calls.schema_check import first_misfit
from domain.request.call_problem import CallProblem, ProblemKind
from domain.request.chat import Json, ToolCall, ToolSpec
from domain.request.stream import ContentDelta, ToolCallDelta


def joined_calls(deltas: Iterable[ContentDelta]) -> tuple[ToolCall, ...]:
    """The calls that an answer's deltas tell, whole."""
    found: dict[int, tuple[str, str, list[str]]] = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            _, _, arguments = found.setdefault(delta.index, (delta.id, delta.name, []))
            arguments.append(delta.arguments)
    return tuple(ToolCall(id, name, "".join(arguments)) for id, name, arguments in found.values())


def call_problems(calls: Iterable[ToolCall], tools: Sequence[ToolSpec]) -> tuple[CallProblem, ...]:
    """One for each call that has one: the gravest."""
    by_name = {tool.name: tool for tool in tools}
    problems = ((call, _problem(call, by_name.get(call.name))) for call in calls)
    return tuple(CallProblem(call.id, *problem) for call, problem in problems if problem is not None)


def _problem(call: ToolCall, tool: ToolSpec | None) -> tuple[ProblemKind, str] | None:
    if tool is None:
        return ProblemKind.UNKNOWN_TOOL, f"no tool {call.name!r} was given"
    try:
        arguments: Json = json.loads(call.arguments, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number is none, or all is too deep"
        return ProblemKind.MALFORMED_ARGUMENTS, f"the arguments for {call.name} are not JSON: {reason}"
    if not isinstance(arguments, dict):
        return ProblemKind.MALFORMED_ARGUMENTS, f"the arguments for {call.name} are not a JSON object"
    misfit = first_misfit(arguments, tool.parameters)
    return None if misfit is None else (ProblemKind.SCHEMA_MISMATCH, f"the arguments for {call.name}: {misfit}")


def _refuse(constant: str) -> Json:
    raise ValueError(constant)
