"""The configured tool servers; their client is imported only where there is one."""

from application.mcp_settings import NEVER
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.tool_servers import ToolServers
from application.services.observed_tools import ObservedTools
from application.settings import McpSettings
from application.use_cases.generate import Generate
from application.use_cases.tool_loop import ToolLoop


def build_tool_servers(settings: McpSettings, events: EventSink, clock: Clock) -> ToolServers | None:
    """The servers that are enabled, not started yet; None without one."""
    if not (enabled := settings.enabled):
        return None
    from adapters.mcp.servers import McpToolServers

    return ObservedTools(McpToolServers(enabled, settings.max_result.num_bytes or 0), events, clock)


def build_tool_loop(settings: McpSettings, servers: ToolServers | None, generate: Generate) -> ToolLoop | None:
    """The loop of responses with tools; None without servers."""
    if servers is None:
        return None
    approvals = {name: server.approval != NEVER for name, server in settings.enabled.items()}
    return ToolLoop(generate, servers, approvals, settings.max_steps, settings.max_calls)
