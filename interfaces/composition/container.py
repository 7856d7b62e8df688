"""The object graph: every adapter is chosen here and nowhere else. Tests override single providers."""

from collections.abc import Callable

from dependency_injector import containers, providers

from adapters.llguidance.checker import LlguidanceChecker
from adapters.llguidance.compiler import LlguidanceCompiler
from adapters.system.clock import SystemClock
from adapters.system.event_log import EventLog
from adapters.system.ids import RandomIds
from application.ports.engine import Engine
from application.services.cache_readings import CacheReadings
from application.services.lane import Lane
from application.services.live_figures import LiveFigures
from application.services.recent_requests import RecentRequests
from application.services.text_side.cache_reports import CacheReports
from application.services.text_side.grammar_check import GrammarCheck
from application.services.text_side.model_names import ModelNames
from application.services.text_side.model_pool import ModelPool
from application.services.text_side.open_requests import OpenRequests
from application.services.text_side.prompt_encoder import PromptEncoder
from application.services.token_side.engine_thread import EngineThread
from application.services.token_side.outlet import Outlet
from application.services.token_side.queue_waits import QueueWaits
from application.settings import Settings
from application.use_cases.check_health import CheckHealth
from application.use_cases.count_tokens import CountTokens
from application.use_cases.explain_prompt import ExplainPrompt
from application.use_cases.generate import Generate
from application.use_cases.list_models import ListModels
from application.use_cases.manage_models import ManageModels
from application.use_cases.tokenize import Tokenize
from application.use_cases.warm_prompt import WarmPrompt
from application.use_cases.watch_requests import WatchRequests
from domain.load_room import LoadRoom
from domain.scheduling import StepLimits
from interfaces.composition.backends import Backend, choose_backend
from interfaces.composition.cache import CacheTiers
from interfaces.composition.documents import build_documents, generated_calls
from interfaces.composition.keys import ServerKeys
from interfaces.composition.memory import build_guard, memory_limits
from interfaces.composition.store import build_store
from interfaces.composition.telemetry import make_events, make_telemetry

NUM_GRAMMAR_THREADS = 4


def step_limits(settings: Settings, backend: Backend) -> StepLimits:
    """One grid line of prefill a step: the longest a running stream ever waits for somebody else's prompt."""
    grid = settings.engine.prefill_grid or backend.default_grid
    return StepLimits(settings.engine.max_batch, grid, grid, backend.max_last_chunk)


def load_room(engine: Engine) -> Callable[[], LoadRoom]:
    """How much room for weights the engine told last."""

    def room() -> LoadRoom:
        status = engine.status()
        return LoadRoom.of(status.limits, status.ledger)

    return room


class Container(containers.DeclarativeContainer):
    """Singletons, created on first use. `settings` must be provided, `origins` says what decided them (as
    LoadedSettings has it); `extra_sinks` is for tests and benchmarks."""

    settings: providers.Provider[Settings] = providers.Dependency(instance_of=Settings)
    origins = providers.Object(dict[str, str]())
    extra_sinks = providers.Object(())

    clock = providers.Singleton(SystemClock)
    ids = providers.Singleton(RandomIds)
    telemetry = providers.Singleton(make_telemetry, settings.provided.telemetry, clock)
    request_log = providers.Singleton(EventLog)
    figures = providers.Singleton(LiveFigures, clock)
    recent = providers.Singleton(RecentRequests, keeps_tokens=settings.provided.shows_text)
    events = providers.Singleton(make_events, telemetry, request_log, providers.List(figures, recent), extra_sinks)

    keys = providers.Singleton(ServerKeys, settings.provided.server, events, clock)

    backend = providers.Singleton(choose_backend, settings)
    limits = providers.Singleton(step_limits, settings, backend)
    documents = providers.Singleton(build_documents, settings, events, clock)

    # The token side. Nothing of it is known to the text side but `engine`.
    engine_events = providers.Singleton(Outlet, clock)
    store = providers.Singleton(build_store, settings.provided.store, engine_events, clock)
    memory = providers.Singleton(memory_limits, settings.provided.engine.memory, backend)
    cache = providers.Singleton(
        CacheTiers, settings, limits, store, engine_events, clock, backend.provided.land, memory
    )
    guard = providers.Singleton(build_guard, memory, backend, cache, limits, engine_events, clock)
    grammar_lane = providers.Singleton(Lane, "grammar", NUM_GRAMMAR_THREADS)
    constraints = providers.Singleton(
        LlguidanceCompiler, lane=grammar_lane, vocabulary_of=backend.provided.vocabulary_of
    )
    engine = providers.Singleton(
        EngineThread,
        make_backend=backend.provided.engine_factory,
        prefix_cache=cache.provided.prefix_cache,
        cache=cache.provided.access,
        limits=limits,
        outlet=engine_events,
        clock=clock,
        close_cache=cache.provided.close,
        constraints=constraints,
        guard=guard,
        waits=providers.Singleton(QueueWaits, settings.provided.engine.memory_wait_s),
    )

    grammars = providers.Singleton(GrammarCheck, providers.Singleton(LlguidanceChecker))
    requests = providers.Singleton(
        OpenRequests,
        engine=engine,
        events=events,
        clock=clock,
        max_queue=settings.provided.engine.queue,
        explained=recent.provided.explained,
    )
    pool = providers.Singleton(
        ModelPool,
        repository=backend.provided.repository,
        tokenizers=backend.provided.tokenizers,
        engine=engine,
        settings=settings.provided.model,
        clock=clock,
        check=backend.provided.check,
        tables=settings.provided.models,
        room=providers.Singleton(load_room, engine),
    )
    calls = providers.Singleton(generated_calls, settings.provided.cache, documents)
    encoder = providers.Singleton(PromptEncoder, calls, settings.provided.cache.rewrite_rules)
    generate = providers.Singleton(
        Generate,
        pool=pool,
        engine=engine,
        requests=requests,
        ids=ids,
        events=events,
        clock=clock,
        encoder=encoder,
        grammars=grammars,
        calls=calls,
    )
    answering = providers.Singleton(
        ModelNames,
        pool,
        backend.provided.repository,
        settings.provided.server.model_of,
        settings.provided.model.default,
    )
    list_models = providers.Singleton(ListModels, repository=backend.provided.repository, pool=pool)
    manage_models = providers.Singleton(ManageModels, pool, backend.provided.repository)
    watch_requests = providers.Singleton(WatchRequests, recent, requests, pool)
    readings = providers.Singleton(CacheReadings, engine.provided.cache.stats, documents.provided.usage, clock)
    check_health = providers.Singleton(
        CheckHealth, engine=engine, requests=requests, pool=pool, clock=clock, stall_s=settings.provided.engine.stall_s
    )
    explain_prompt = providers.Singleton(
        ExplainPrompt,
        pool=pool,
        cache=engine.provided.cache,
        encoder=encoder,
        shows_text=settings.provided.shows_text,
    )
    count_tokens = providers.Singleton(CountTokens, pool=pool, encoder=encoder)
    tokenize = providers.Singleton(Tokenize, pool=pool, encoder=encoder)
    cache_reports = providers.Singleton(CacheReports, engine.provided.cache, events, clock)
    warm_prompt = providers.Singleton(WarmPrompt, pool=pool, generate=generate, cache=engine.provided.cache)


__all__ = ("Container", "step_limits")
