"""The HTTP side of a container; imported only for a server."""

from typing import cast

from litestar import Litestar
from litestar.types import Middleware

from adapters.web.peer_reader import read_peer
from application.installation import installed_version
from application.use_cases.peers import Peers
from interfaces.composition.container import Container
from interfaces.composition.tools import build_tool_loop
from interfaces.http.app import create_app
from interfaces.http.services import Services


def build_app(container: Container) -> Litestar:
    settings, telemetry = container.settings(), container.telemetry()
    services = Services(
        default_model=settings.model.default,
        generate=container.generate(),
        embed=container.embed(),
        models=container.served_models(),
        hub=container.hub_models(),
        quantise=container.quantise(),
        check_health=container.check_health(),
        cached_prompts=container.cached_prompts(),
        tokenize=container.tokenize(),
        engine=container.engine(),
        documents=container.documents(),
        ids=container.ids(),
        clock=container.clock(),
        events=container.events(),
        figures=container.figures(),
        timelines=container.timelines(),
        requests=container.requests(),
        readings=container.readings(),
        log=container.recent_log(),
        settings=container.change_settings(),
        client_keys=container.manage_keys(),
        peers=Peers(settings.fleet.peers, read_peer, container.clock()),
        trace_context=telemetry.trace_context,
        metrics_text=telemetry.metrics_text,
        tool_loop=build_tool_loop(
            settings.mcp, container.tool_servers(), container.generate(), container.events(), container.clock()
        ),
        tool_servers=container.tool_servers(),
    )
    # Litestar's type for middleware knows its own scopes only; any ASGI wrapper works.
    middleware = [cast(Middleware, telemetry.middleware)] if telemetry.middleware is not None else []
    keys = container.keys()
    return create_app(
        services,
        settings.server,
        version=installed_version(),
        middleware=middleware,
        keys=keys.ring,
        lifespan=[keys.watching],
    )
