"""The object graph: every adapter is chosen here and nowhere else. Tests override single providers."""

import sys
from collections.abc import Callable, Sequence

from dependency_injector import providers

from adapters.config.loader import LoadedSettings
from adapters.engine_process.child import ChildProcess
from adapters.huggingface.hub import HuggingFaceHub
from adapters.image_process.workers import ImageWorkers
from adapters.llguidance.checker import LlguidanceChecker
from adapters.otel.setup import build_telemetry
from adapters.otel.telemetry import RouterFigures
from adapters.system.awake import SleepGuard
from adapters.system.clock import RandomIds
from adapters.system.event_log import EventLog
from adapters.system.key_file import ServerKeys
from adapters.system.thread_stacks import PythonStacks
from adapters.web.image_fetcher import ImageFetcher
from application.ports.event_sink import EventSink
from application.ports.supervision import NoServiceManager
from application.services.cache_readings import CacheReadings, RegularReports
from application.services.event_sinks import EventFanOut, NullEvents
from application.services.lane import IDLE_IN
from application.services.live_figures import LiveFigures
from application.services.recent_log import RecentLog
from application.services.request_timelines import RequestTimelines
from application.services.text_side.answers.answer_grammar import GrammarCheck
from application.services.text_side.answers.generated_calls import GeneratedCalls
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.answers.prompt_files import PromptFiles
from application.services.text_side.answers.prompt_images import PromptImages
from application.services.text_side.models.model_pool import ModelPool
from application.services.text_side.supervision.engine_watch import EngineWatch
from application.settings import Settings
from application.use_cases.cached_prompts import CachedPrompts
from application.use_cases.check_health import CheckHealth
from application.use_cases.embed import Embed
from application.use_cases.generate import Generate
from application.use_cases.hub_models import HubModels
from application.use_cases.manage_keys import ManageKeys
from application.use_cases.models import Models
from application.use_cases.quantise import Quantise
from application.use_cases.tokenize import Tokenize
from interfaces.composition.backends import STUCK_AFTER_CPU_S, models_for, server_quantiser, why_hub_model_is_unserved
from interfaces.composition.engine_entry import IMAGE_CHILD
from interfaces.composition.engine_process import build_engine_process
from interfaces.composition.settings import build_change_settings, image_hosts, live_settings
from interfaces.composition.store import build_documents
from interfaces.composition.token_side import TokenSide
from interfaces.composition.tools import build_tool_servers

WATCHED_THREADS = ("cairn-compute", "MainThread", "cairn-")
"""The threads whose stacks a report of a stuck engine shows, the most telling first: how their names begin."""


def ignore(_why: str) -> None:
    """The exit of a process that cannot continue without its engine."""


def copies_dir(settings: Settings) -> str:
    """The folder of quantised copies; empty for none."""
    return next(iter(settings.model.dirs), "")


def make_events(
    timelines: EventSink, request_log: EventSink, telemetry: EventSink, figures: EventSink, extra: Sequence[EventSink]
) -> EventSink:
    """The timelines come first: the others read them. The log comes before telemetry: its lines name the traces that
    telemetry closes."""
    awake = SleepGuard() if sys.platform == "darwin" else NullEvents()
    return EventFanOut(timelines, request_log, telemetry, figures, awake, *extra)


class Container(TokenSide):
    """Both sides. Singletons, created on first use. `settings` must be provided; `loaded` says what decided them, and
    None that they were made in code, which nobody changes. `extra_sinks` is for tests and benchmarks. A server that has
    the process for itself gives `supervisor` and `give_up` (see EngineWatch), and `outdated` (see EngineSupervisor).
    `place` of the engine: a `thread` of this process, or with `process` a child, of which `first_child` is launched
    already; then nothing of the token side is made here."""

    settings = TokenSide.settings
    clock = TokenSide.clock
    loaded: providers.Provider[LoadedSettings | None] = providers.Object(None)
    live = providers.Singleton(live_settings, settings, loaded)
    extra_sinks = providers.Object(())
    place: providers.Provider[str] = providers.Object("thread")
    first_child: providers.Provider[ChildProcess | None] = providers.Object(None)
    supervisor = providers.Singleton(NoServiceManager)
    give_up: providers.Provider[Callable[[int], object] | None] = providers.Object(None)
    outdated: providers.Provider[Callable[[str], object]] = providers.Object(ignore)

    ids = providers.Singleton(RandomIds)
    timelines = providers.Singleton(RequestTimelines, keeps_tokens=settings.provided.shows_text)
    figures = providers.Singleton(LiveFigures, clock, timelines)
    routers = providers.Singleton(
        RouterFigures,
        default_model=settings.provided.model.default,
        block_size=settings.provided.engine.block_size,
        vllm_names=settings.provided.metrics.vllm_names,
    )
    telemetry = providers.Singleton(build_telemetry, settings.provided.telemetry, clock, figures, routers)
    recent_log = providers.Singleton(RecentLog, clock)
    request_log = providers.Singleton(EventLog, timelines, telemetry.provided.trace_ids)
    events = providers.Singleton(make_events, timelines, request_log, telemetry.provided.sink, figures, extra_sinks)

    keys = providers.Singleton(ServerKeys, settings.provided.server, events, clock)
    tool_servers = providers.Singleton(build_tool_servers, settings.provided.mcp, events, clock)
    documents = providers.Singleton(build_documents, settings, events, clock)

    engine_process = providers.Singleton(build_engine_process, live, clock, first_child, outdated)
    engine = providers.Selector(place, thread=TokenSide.engine_thread, process=engine_process)
    models = providers.Selector(
        place,
        thread=TokenSide.backend,
        process=providers.Singleton(models_for, settings, engine_process.provided.check),
    )

    watch = providers.Singleton(
        EngineWatch,
        status=engine.provided.status,
        clock=clock,
        events=events,
        stacks=providers.Singleton(PythonStacks, WATCHED_THREADS, (IDLE_IN,)),
        stuck_after_s=STUCK_AFTER_CPU_S,
        supervisor=supervisor,
        give_up=give_up,
        abandon=providers.Selector(place, thread=providers.Object(None), process=engine_process.provided.abandon),
        flush=request_log.provided.close,
    )

    grammars = providers.Singleton(GrammarCheck, providers.Singleton(LlguidanceChecker))
    requests = providers.Singleton(
        OpenRequests,
        engine=engine,
        events=events,
        clock=clock,
        max_queue=settings.provided.engine.queue,
        timelines=timelines,
    )
    pool = providers.Singleton(
        ModelPool,
        repository=models.provided.repository,
        tokenizers=models.provided.tokenizers,
        engine=engine,
        live=live,
        clock=clock,
        check=models.provided.check,
        images=models.provided.images,
    )
    calls = providers.Singleton(GeneratedCalls, documents)
    images = providers.Singleton(PromptImages, providers.Factory(ImageFetcher, providers.Factory(image_hosts, live)))
    files = providers.Singleton(PromptFiles, providers.Factory(ImageWorkers, IMAGE_CHILD))
    encoder = providers.Singleton(PromptEncoder, images, files, calls)
    generate = providers.Singleton(
        Generate,
        pool=pool,
        engine=engine,
        requests=requests,
        ids=ids,
        encoder=encoder,
        grammars=grammars,
        calls=calls,
        content=telemetry.provided.content,
    )
    embed = providers.Singleton(Embed, pool=pool, engine=engine, requests=requests, encoder=encoder, clock=clock)
    served_models = providers.Singleton(Models, pool, models.provided.repository, live)
    change_settings = providers.Singleton(build_change_settings, live, loaded, served_models)
    manage_keys = providers.Singleton(ManageKeys, keys)
    hub = providers.Singleton(HuggingFaceHub)
    hub_models = providers.Singleton(
        HubModels, hub, served_models, providers.Callable(why_hub_model_is_unserved, settings)
    )
    quantise = providers.Singleton(
        Quantise,
        providers.Callable(server_quantiser, settings),
        providers.Callable(copies_dir, settings),
        served_models,
        events,
        clock,
    )
    readings = providers.Singleton(CacheReadings, engine, documents.provided.usage, clock)
    check_health = providers.Singleton(
        CheckHealth,
        engine=engine,
        requests=requests,
        pool=pool,
        clock=clock,
        stuck_after_s=STUCK_AFTER_CPU_S,
        loop_lag_s=watch.provided.loop_lag_s,
    )
    cached_prompts = providers.Singleton(
        CachedPrompts,
        pool=pool,
        engine=engine,
        encoder=encoder,
        requests=requests,
        generate=generate,
        clock=clock,
        shows_text=settings.provided.shows_text,
    )
    tokenize = providers.Singleton(Tokenize, pool=pool, encoder=encoder)
    reports = providers.Singleton(RegularReports, engine, check_health, events, clock)
