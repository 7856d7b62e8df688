"""The watch over a container's engine, and how long a step may take before it counts as stuck."""

from collections.abc import Callable
from typing import TypeAlias

from adapters.system.thread_stacks import PythonStacks
from application.ports.clock import Clock
from application.ports.engine import Engine
from application.ports.event_sink import EventSink
from application.ports.supervision import LastResort, NoLastResort, Supervisor
from application.services.lane import IDLE_IN
from application.services.text_side.engine_watch import EngineWatch, WatchLimits
from application.settings import EngineSettings

STUCK_AFTER_GPU_S = 300.0
"""A chunk of 2048 tokens at a context of 100,000 takes a small Mac some 70 s with 8B parameters; compiling kernels the
first time takes a minute or less."""

STUCK_AFTER_CPU_S = 900.0
"""A chunk of 512 tokens there takes some 350 s on two cores."""

MakeLastResort: TypeAlias = Callable[[EngineSettings, float], LastResort]
"""Given after how many seconds the engine counts as stuck."""

_THREADS = ("cairn-compute", "MainThread", "cairn-")


def stuck_after_s(settings: EngineSettings, may_be_cpu: bool) -> float:
    """As set, or what no step of this device legitimately takes. `may_be_cpu`: it is one, or nobody knows yet."""
    if settings.stuck_after_s is not None:
        return settings.stuck_after_s
    return STUCK_AFTER_CPU_S if may_be_cpu else STUCK_AFTER_GPU_S


def no_last_resort(_settings: EngineSettings, _stuck_after: float) -> LastResort:
    return NoLastResort()


def build_watch(
    engine: Engine,
    events: EventSink,
    clock: Clock,
    settings: EngineSettings,
    stuck_after: float,
    supervisor: Supervisor,
    make_last_resort: MakeLastResort,
    give_up: Callable[[int], object] | None,
    flush: Callable[[], object],
    abandon: Callable[[], None] | None,
) -> EngineWatch:
    return EngineWatch(
        status=engine.status,
        clock=clock,
        events=events,
        stacks=PythonStacks(_THREADS, (IDLE_IN,)),
        limits=WatchLimits(stuck_after_s=stuck_after, exit_after_s=settings.exit_when_stuck_s),
        supervisor=supervisor,
        last_resort=make_last_resort(settings, stuck_after),
        give_up=give_up,
        abandon=abandon,
        flush=flush,
    )


__all__ = ("STUCK_AFTER_CPU_S", "STUCK_AFTER_GPU_S", "MakeLastResort", "build_watch", "no_last_resort", "stuck_after_s")
