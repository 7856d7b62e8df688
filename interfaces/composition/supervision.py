"""The watch over the engine, and the time after which a step counts as stuck."""

from collections.abc import Callable

from adapters.system.thread_stacks import PythonStacks
from application.ports.clock import Clock
from application.ports.engine import Engine
from application.ports.event_sink import EventSink
from application.ports.supervision import Supervisor
from application.services.lane import IDLE_IN
from application.services.text_side.supervision.engine_watch import EngineWatch

STUCK_AFTER_GPU_S = 300.0
"""A chunk of 2048 tokens at a context of 100,000 takes a small Mac some 70 s with 8B parameters; compiling kernels the
first time takes a minute or less."""

STUCK_AFTER_CPU_S = 900.0
"""A chunk of 512 tokens there takes some 350 s on two cores."""

_THREADS = ("cairn-compute", "MainThread", "cairn-")


def stuck_after_s(may_be_cpu: bool) -> float:
    """A time longer than any step of this device takes. `may_be_cpu`: the device is a CPU, or is not known yet."""
    return STUCK_AFTER_CPU_S if may_be_cpu else STUCK_AFTER_GPU_S


def build_watch(
    engine: Engine,
    events: EventSink,
    clock: Clock,
    supervisor: Supervisor,
    give_up: Callable[[int], object] | None,
    flush: Callable[[], object],
    abandon: Callable[[], None] | None,
) -> EngineWatch:
    return EngineWatch(
        status=engine.status,
        clock=clock,
        events=events,
        stacks=PythonStacks(_THREADS, (IDLE_IN,)),
        stuck_after_s=STUCK_AFTER_CPU_S,
        supervisor=supervisor,
        give_up=give_up,
        abandon=abandon,
        flush=flush,
    )
