"""The HTTP side of a container; imported only for a server."""

import os
from typing import cast

from litestar import Litestar
from litestar.types import Middleware

from adapters.config.loader import config_file, shown_settings
from application.installation import installed_version
from application.settings import Settings
from interfaces.composition.container import Container
from interfaces.http.app import create_app
from interfaces.http.services import AdminServices, Services


def _admin(container: Container, settings: Settings) -> AdminServices:
    file = str(config_file(os.environ)) if settings.models else ""
    return AdminServices(
        figures=container.figures(),
        timelines=container.timelines(),
        requests=container.requests(),
        readings=container.readings(),
        settings=lambda: shown_settings(settings, container.origins(), file),
    )


def build_app(container: Container) -> Litestar:
    settings, telemetry, engine = container.settings(), container.telemetry(), container.engine()
    services = Services(
        default_model=settings.model.default,
        generate=container.generate(),
        models=container.served_models(),
        check_health=container.check_health(),
        cached_prompts=container.cached_prompts(),
        tokenize=container.tokenize(),
        cache_stats=lambda: engine.cache.stats(),
        clear_cache=lambda model, salt: engine.cache.clear(model, salt),
        documents=container.documents(),
        ids=container.ids(),
        clock=container.clock(),
        events=container.events(),
        admin=_admin(container, settings),
        trace_context=telemetry.trace_context,
        metrics_text=telemetry.metrics_text,
        engine_status=engine.status,
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
