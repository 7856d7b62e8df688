"""The object graph: every adapter is chosen here and nowhere else. Tests override single providers."""

from dependency_injector import containers, providers

from adapters.system.clock import SystemClock
from adapters.system.event_log import EventLog
from adapters.system.ids import RandomIds
from application.services.engine_loop import EngineLoop
from application.services.model_pool import ModelPool
from application.services.prompt_encoder import PromptEncoder
from application.services.stream_hub import StreamHub
from application.settings import Settings
from application.use_cases.check_health import CheckHealth
from application.use_cases.clear_store import ClearCache
from application.use_cases.count_tokens import CountTokens
from application.use_cases.explain_prompt import ExplainPrompt
from application.use_cases.generate import Generate
from application.use_cases.list_models import ListModels
from application.use_cases.read_cache_stats import ReadCacheStats
from application.use_cases.warm_prompt import WarmPrompt
from domain.scheduling import StepLimits
from interfaces.composition.backends import Backend, fake_backend, mlx_backend
from interfaces.composition.cache import CacheTiers
from interfaces.composition.documents import build_documents
from interfaces.composition.store import build_store
from interfaces.composition.telemetry import make_events, make_telemetry


def step_limits(settings: Settings, backend: Backend) -> StepLimits:
    """One grid line of prefill a step: the longest a running stream ever waits for somebody else's prompt."""
    grid = settings.engine.prefill_grid or backend.default_grid
    return StepLimits(settings.engine.max_batch, grid, grid, backend.max_last_chunk)


class Container(containers.DeclarativeContainer):
    """Singletons, created on first use. `settings` must be provided; `extra_sinks` is for tests and benchmarks."""

    settings: providers.Provider[Settings] = providers.Dependency(instance_of=Settings)
    extra_sinks = providers.Object(())

    clock = providers.Singleton(SystemClock)
    ids = providers.Singleton(RandomIds)
    telemetry = providers.Singleton(make_telemetry, settings.provided.telemetry, clock)
    request_log = providers.Singleton(EventLog)
    events = providers.Singleton(make_events, telemetry, request_log, extra_sinks)

    backend = providers.Selector(
        settings.provided.engine.backend,
        mlx=providers.Singleton(mlx_backend, settings),
        fake=providers.Singleton(fake_backend, settings),
    )
    limits = providers.Singleton(step_limits, settings, backend)
    hub = providers.Singleton(StreamHub)
    store = providers.Singleton(build_store, settings.provided.store, events, clock)
    documents = providers.Singleton(build_documents, settings, events, clock)
    cache = providers.Singleton(CacheTiers, settings, limits, store, events, clock, backend.provided.land)
    engine = providers.Singleton(
        EngineLoop,
        engine_factory=backend.provided.engine_factory,
        sink=hub,
        events=events,
        clock=clock,
        prefix_cache=cache.provided.prefix_cache,
        limits=limits,
        max_queue=settings.provided.engine.queue,
    )
    pool = providers.Singleton(
        ModelPool,
        repository=backend.provided.repository,
        tokenizers=backend.provided.tokenizers,
        engine=engine,
        settings=settings.provided.model,
        check=backend.provided.check,
    )
    encoder = providers.Singleton(PromptEncoder)
    generate = providers.Singleton(
        Generate, pool=pool, engine=engine, hub=hub, ids=ids, events=events, clock=clock, encoder=encoder
    )
    list_models = providers.Singleton(
        ListModels, repository=backend.provided.repository, pool=pool, prefix_cache=cache.provided.prefix_cache
    )
    check_health = providers.Singleton(
        CheckHealth, engine=engine, pool=pool, clock=clock, stall_s=settings.provided.engine.stall_s
    )
    explain_prompt = providers.Singleton(
        ExplainPrompt,
        pool=pool,
        prefix_cache=cache.provided.prefix_cache,
        encoder=encoder,
        shows_text=settings.provided.shows_text,
    )
    count_tokens = providers.Singleton(CountTokens, pool=pool, encoder=encoder)
    warm_prompt = providers.Singleton(
        WarmPrompt,
        pool=pool,
        generate=generate,
        prefix_cache=cache.provided.prefix_cache,
        persistence=cache,
    )
    clear_cache = providers.Singleton(ClearCache, prefix_cache=cache.provided.prefix_cache)
    cache_stats = providers.Singleton(
        ReadCacheStats,
        prefix_cache=cache.provided.prefix_cache,
        store=store,
        writer=cache.provided.writer,
    )


__all__ = ("Container", "step_limits")
