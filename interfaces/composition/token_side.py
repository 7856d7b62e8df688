"""The objects of the token side. The text side knows its engine only.

They are made in the server's process, or in a child that makes nothing else (`interfaces/cli/server/engine_child`).
"""

import sys
from collections.abc import Callable

from dependency_injector import containers, providers

from adapters.engine_process.host import Hosted
from adapters.llguidance.compiler import LlguidanceCompiler
from adapters.system.clock import SystemClock
from application.services.lane import Lane
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.engine_thread import EngineThread
from application.services.token_side.event_batcher import EventBatcher
from application.services.token_side.memory_guard import MemoryGuard
from application.settings import Settings
from domain.scheduling.step_values import StepLimits
from interfaces.composition.backends import Backend, choose_backend, describe_computing
from interfaces.composition.cache import CacheTiers
from interfaces.composition.memory import memory_limits
from interfaces.composition.store import build_kv_publisher, build_shared_store, build_store

NUM_GRAMMAR_THREADS = 4

SWITCH_INTERVAL_S = 0.0005
"""The interpreter's switch interval. The compute thread returns from the device many times a step, and would wait 5 ms
each time for the thread that holds the interpreter: measured, 12 % of a small model's decode rate."""


def step_limits(settings: Settings, backend: Backend) -> StepLimits:
    """Returns limits with one grid line of prefill a step: the longest that a stream waits for another prompt."""
    grid = settings.engine.prefill_grid or backend.default_grid
    return StepLimits(settings.engine.max_batch, grid, grid, backend.max_last_chunk)


def no_back_pressure() -> None:
    """Returns at once: the receiver of this engine's batches needs no back-pressure."""


def closing(cache: CacheTiers, grammar_lane: Lane) -> Callable[[], None]:
    """Returns the function that closes everything after the engine stopped."""

    def close() -> None:
        grammar_lane.close()
        cache.close()

    return close


class TokenSide(containers.DeclarativeContainer):
    """Singletons made on first use. `settings` must be provided. `hold`, `delivers_directly`: as in EngineThread."""

    settings: providers.Provider[Settings] = providers.Dependency(instance_of=Settings)
    hold = providers.Object(no_back_pressure)
    delivers_directly = providers.Object(False)

    clock = providers.Singleton(SystemClock)
    backend = providers.Singleton(choose_backend, settings)
    limits = providers.Singleton(step_limits, settings, backend)
    engine_events = providers.Singleton(EventBatcher, clock)
    store = providers.Singleton(build_store, settings.provided.store, engine_events, clock)
    shared_store = providers.Singleton(build_shared_store, settings.provided.store)
    publisher = providers.Singleton(build_kv_publisher, settings.provided.cache, engine_events, clock)
    memory = providers.Singleton(memory_limits, settings.provided.engine.memory, backend)
    cache = providers.Singleton(
        CacheTiers,
        settings,
        limits,
        store,
        engine_events,
        clock,
        backend.provided.upload,
        memory,
        uploads_on_compute_thread=backend.provided.uploads_on_compute_thread,
        shared=shared_store,
        publisher=publisher,
    )
    guard = providers.Singleton(
        MemoryGuard,
        probe=backend.provided.memory,
        limits=memory,
        hot=cache.provided.hot,
        live=cache.provided.live,
        queued_bytes=cache.provided.queued_bytes,
        steps=limits,
        events=engine_events,
        clock=clock,
        host=backend.provided.host_memory,
    )
    grammar_lane = providers.Singleton(Lane, "grammar", NUM_GRAMMAR_THREADS)
    constraints = providers.Singleton(LlguidanceCompiler, lane=grammar_lane)
    loop = providers.Singleton(
        EngineLoop,
        batcher=engine_events,
        prefix_cache=cache.provided.prefix_cache,
        guard=guard,
        limits=limits,
        constraints=constraints,
    )
    engine_thread = providers.Singleton(
        EngineThread,
        loop,
        make_backend=backend.provided.engine_factory,
        close_cache=providers.Callable(closing, cache, grammar_lane),
        hold=hold,
        delivers_directly=delivers_directly,
        computing=providers.Singleton(describe_computing, settings),
        stuck_after_s=backend.provided.stuck_after_s,
    )


def host_token_side(settings: Settings, hold: Callable[[], None]) -> Hosted:
    """The token side of an engine's process. Raises ServerUnavailable."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    side = TokenSide(
        settings=providers.Object(settings), hold=providers.Object(hold), delivers_directly=providers.Object(True)
    )
    return Hosted(side.engine_thread(), side.backend().check)
