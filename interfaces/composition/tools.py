"""The configured tool servers; their client is imported only where there is one."""

from application.mcp_settings import NEVER
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.tool_servers import RequestedServer, ToolServers
from application.services.observed_tools import ObservedTools
from application.settings import McpSettings
from application.use_cases.generate import Generate
from application.use_cases.tool_loop import ToolLoop
from domain.host_name import https_host


def build_tool_servers(settings: McpSettings, events: EventSink, clock: Clock) -> ToolServers | None:
    """The servers that are enabled, not started yet; None without one."""
    if not (enabled := settings.enabled):
        return None
    from adapters.mcp.servers import McpToolServers

    return ObservedTools(McpToolServers(enabled, settings.max_result.num_bytes or 0), events, clock)


def build_tool_loop(
    settings: McpSettings, servers: ToolServers | None, generate: Generate, events: EventSink, clock: Clock
) -> ToolLoop | None:
    """The loop of answers with tools; None without servers, and without hosts that requests may name."""
    hosts, max_result = settings.request_hosts, settings.max_result.num_bytes or 0
    if servers is None and not hosts:
        return None
    from adapters.mcp.requested import requested_server
    from adapters.mcp.servers import McpToolServers

    def open_requested(server: RequestedServer) -> ToolServers:
        # metrics have the host, which the operator lists, and not the client's name for it
        return ObservedTools(requested_server(server, hosts, max_result), events, clock, https_host(server.url) or "")

    return ToolLoop(
        generate,
        servers or McpToolServers({}, max_result),
        {name: server.approval != NEVER for name, server in settings.enabled.items()},
        settings.max_steps,
        settings.max_calls,
        open_requested if hosts else None,
        asks_requested=settings.request_approval != NEVER,
    )
