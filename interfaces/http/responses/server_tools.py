"""Tools of type `mcp`: the tools of configured servers, which the server calls itself.

    tools[i] ──► right of the key, rules ──► listing, all servers at once ──► mcp_list_tools, names for the model
    mcp_approval_response ──► call ──► mcp_call

A request names configured servers, and brings no address and no secret; others by a `server_url` on a host that the
operator lists. It may tighten the operator's rule of approval, and cannot loosen it. The list of tools is read once for
a response and sorted, so that the prompts of all its steps begin with the same text.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from application.ports.tool_servers import RequestedServer, Tool
from application.use_cases.tool_loop import ToolLoop
from domain.errors import DomainError, require
from domain.request.server_calls import CallFault, CallOutcome, OfferedTool
from interfaces.http.answering.server_tools import (
    MAX_SERVERS,
    OPERATORS,
    Offered,
    Requested,
    check_requested,
    check_right,
    listed,
    open_requested,
)
from interfaces.http.incoming.json_body import converted
from interfaces.http.incoming.request_context import RequestContext

MCP = "mcp"

NOT_OFFERED = "approves a call of a tool that 'tools' does not offer; send its tool of type mcp again"

_STEP = re.compile(r"[a-z]+_(.+_s\d+)_(.+)")


class ToolNames(Struct):
    """Tools by name. `read_only` is the server's own claim, and chooses nothing."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class ApprovalRules(Struct):
    always: ToolNames | None = None
    never: ToolNames | None = None


class McpTool(Struct):
    """The tools of one server. `server_url`, `headers` and `authorization`: of one that the request names itself."""

    server_label: str
    allowed_tools: list[str] | ToolNames | None = None
    require_approval: str | ApprovalRules | None = None
    server_url: str | None = None
    connector_id: str | None = None
    tunnel_id: str | None = None
    headers: dict[str, str] | None = None
    authorization: str | None = None


_REFUSED = {"connector_id": "there are no connectors", "tunnel_id": "there are no tunnels"}
SECRETS = frozenset({"headers", "authorization"})
"""The fields of a tool that no answer repeats."""


def step_of(id: str) -> tuple[str, str]:
    """The step and the call that the id of an item names, as `call_item_id` makes it; any other id is both."""
    found = _STEP.fullmatch(id)
    return (id, id) if found is None else (found[1], found[2])


def call_item_id(prefix: str, response: str, step: int, call: str) -> str:
    """The id of a call's item, from which the same prompt is made when the client returns the item."""
    return f"{prefix}_{response}_s{step}_{call}"


async def asked_servers(tools: Sequence[Mapping[str, Any]], context: RequestContext) -> dict[str, McpTool]:
    """The body's tools of type `mcp`, by the server's name; those that the request names itself are opened. Without
    servers, there are none. Raises InvalidRequest."""
    asked: dict[str, McpTool] = {}
    requested: list[Requested] = []
    if (loop := context.tool_loop) is None:
        return asked
    for at, raw in enumerate(tools):
        if raw.get("type") == MCP:
            tool = converted(raw, McpTool, f"tools[{at}]")
            requested += _checked(tool, f"tools[{at}]", loop, context)
            require(tool.server_label not in asked, f"tools[{at}].server_label", "is there twice")
            asked[tool.server_label] = tool
    require(len(asked) <= MAX_SERVERS, "tools", f"name more than {MAX_SERVERS} servers")
    await open_requested(requested, context)
    return asked


async def offered_tools(
    asked: Mapping[str, McpTool], loop: ToolLoop, context: RequestContext
) -> tuple[list[Offered], list[dict[str, Any]]]:
    """The tools of servers, and an item `mcp_list_tools` for each server. A server that does not answer has an item
    with its error, and no tools."""
    offered: list[Offered] = []
    items: list[dict[str, Any]] = []
    for (label, wanted), found in zip(asked.items(), await listed(asked, loop), strict=True):
        item = {"id": context.services.ids.request_id("mcpl"), "type": "mcp_list_tools", "server_label": label}
        if isinstance(found, DomainError):
            outcome = CallOutcome(found.message, CallFault.CONNECTION, 503)
            items.append({**item, "tools": [], "error": error_body(outcome)})
            continue
        own = [tool for tool in found if _is_allowed(wanted, tool.name)]
        offered += [Offered(tool, loop.needs_approval(label) or _asks(wanted, tool.name)) for tool in own]
        items.append({**item, "tools": [_tool_body(tool) for tool in own], "error": None})
    return offered, items


def _checked(tool: McpTool, path: str, loop: ToolLoop, context: RequestContext) -> list[Requested]:
    """Returns the server, if the request names it itself."""
    for field, why in _REFUSED.items():
        require(getattr(tool, field) is None, f"{path}.{field}", f"is not supported: {why}")
    rule = tool.require_approval
    if isinstance(rule, str):
        require(rule in ("always", "never"), f"{path}.require_approval", "must be always, never, or an object")
    if tool.server_url is not None:
        one = _requested(tool, tool.server_url, path)
        check_requested(one, loop, context)
        return [one]
    check_right(tool.server_label, f"{path}.server_label", loop, context)
    for field in sorted(SECRETS):
        require(getattr(tool, field) is None, f"{path}.{field}", OPERATORS)
    return []


def _requested(tool: McpTool, url: str, path: str) -> Requested:
    headers = dict(tool.headers or {})
    if tool.authorization is not None:
        is_free = all(name.lower() != "authorization" for name in headers)
        require(is_free, f"{path}.authorization", "is in 'headers', too; send one of them")
        headers["Authorization"] = f"Bearer {tool.authorization}"
    field = "headers" if tool.headers else "authorization"
    paths = {"name": f"{path}.server_label", "url": f"{path}.server_url", "headers": f"{path}.{field}"}
    return Requested(RequestedServer(tool.server_label, url, headers), paths)


def _is_allowed(wanted: McpTool, name: str) -> bool:
    allowed = wanted.allowed_tools
    names = allowed.tool_names if isinstance(allowed, ToolNames) else allowed
    return names is None or name in names


def _asks(wanted: McpTool, name: str) -> bool:
    """Returns whether the request wants to approve calls of the tool: of one that no rule frees, always."""
    rule = wanted.require_approval
    if isinstance(rule, ApprovalRules):
        is_always = rule.always is not None and name in (rule.always.tool_names or ())
        return is_always or rule.never is None or name not in (rule.never.tool_names or ())
    return rule != "never"


def _tool_body(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": dict(tool.schema),
        "annotations": None,
    }


def error_body(outcome: CallOutcome) -> dict[str, Any] | None:
    """The failure of a call as this dialect has it; None for a call that went well."""
    match outcome.fault:
        case None:
            return None
        case CallFault.TOOL:
            return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": outcome.text}]}
        case CallFault.PROTOCOL:
            return {"type": "mcp_protocol_error", "code": outcome.code, "message": outcome.text}
        case CallFault.CONNECTION:
            return {"type": "http_error", "code": outcome.code, "message": outcome.text}


def outcome_of(output: str | None, error: Any) -> CallOutcome | None:
    """The end of a call as an item tells it; None where it tells of none."""
    if error is not None:
        return CallOutcome(_error_text(error), CallFault.TOOL)
    return None if output is None else CallOutcome(output)


def _error_text(error: Any) -> str:
    if isinstance(error, str):
        return error
    if not isinstance(error, dict):
        return ""
    fields = cast(dict[str, Any], error)
    content = fields.get("content")
    if isinstance(content, list):
        parts = [cast(dict[str, Any], part) for part in cast(Sequence[Any], content) if isinstance(part, dict)]
        return "\n".join(str(part.get("text", "")) for part in parts)
    return str(fields.get("message", ""))


def call_body(
    id: str, tool: OfferedTool, arguments: str, outcome: CallOutcome | None, status: str, approval: str | None = None
) -> dict[str, Any]:
    """An item `mcp_call`. `approval`: the request for it that was granted."""
    is_ok = outcome is not None and outcome.fault is None
    return {
        "id": id,
        "type": "mcp_call",
        "server_label": tool.server,
        "name": tool.name,
        "arguments": arguments,
        "output": outcome.text if outcome is not None and is_ok else None,
        "error": None if outcome is None else error_body(outcome),
        "status": status if outcome is None else "completed" if is_ok else "failed",
        "approval_request_id": approval,
    }


async def approved_calls(
    approved: Sequence[tuple[str, Any]], offered: Sequence[Offered], loop: ToolLoop
) -> list[dict[str, Any]]:
    """Runs the calls that the client has approved, and returns their items. `approved`: the requests, each with the
    path of its approval. Raises InvalidRequest for a call of a tool that is not offered."""
    callable_tools = {(one.tool.server, one.tool.name): one.callable for one in offered}
    tools: list[OfferedTool] = []
    for path, request in approved:
        tool = callable_tools.get((request.server_label, request.name))
        require(tool is not None, f"{path}.approval_request_id", NOT_OFFERED)
        tools += [tool] if tool is not None else []
    calls = [loop.call(tool, request.arguments) for tool, (_, request) in zip(tools, approved, strict=True)]
    outcomes = await asyncio.gather(*calls)
    return [
        call_body(_call_id(request.id), tool, request.arguments, outcome, "completed", request.id)
        for tool, (_, request), outcome in zip(tools, approved, outcomes, strict=True)
    ]


def _call_id(approval_request_id: str) -> str:
    return f"mcp_{approval_request_id.removeprefix('mcpr_')}"


def raw_items(items: Sequence[Mapping[str, Any]]) -> list[Raw]:
    return [Raw(msgspec.json.encode(item)) for item in items]
