"""The health check: a server is ready when its engine makes progress, a model is loaded, and it does not drain.

It evaluates the engine's status itself and relies on nothing that the watch has noted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from application.ports.clock import Clock
from application.ports.engine import Engine, EngineStatus
from application.services.draining import Draining
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.models.model_pool import ModelPool
from domain.health.engine_health import ENDED, WAITING, EngineHealth, engine_health
from domain.models.load_progress import LoadProgress
from domain.scheduling.queue_waits import WaitReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The result of a health check. `problem` is empty when ready; its part before a colon is public. Counts are of
    requests. `waiting_for`: counts by WaitReason. `doing`, `doing_s`: the activity of the compute thread and its
    duration. `loading`: the load under way; None for none; `loading_left_s`: as in its `seconds_left`. `last_loss`: why
    the engine before this one was lost. `stuck_s`: the time since the engine got stuck. `loop_lag_s`: the last measured
    delay of the event loop."""

    is_ready: bool
    is_running: bool
    problem: str
    num_waiting: int
    num_running: int
    waiting_for: Mapping[str, int]
    models: tuple[str, ...]
    engine: EngineHealth
    doing: str
    doing_s: float
    last_loss: str
    stuck_s: float
    loop_lag_s: float
    loading: LoadProgress | None = None
    loading_left_s: float | None = None


class CheckHealth:
    """`draining`: whether the server drains, to be changed by its owner."""

    def __init__(
        self,
        *,
        engine: Engine,
        requests: OpenRequests,
        pool: ModelPool,
        clock: Clock,
        stuck_after_s: float,
        loop_lag_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.draining = Draining()
        self._engine = engine
        self._requests = requests
        self._pool = pool
        self._clock = clock
        self._stuck_after_s = stuck_after_s
        self._loop_lag_s = loop_lag_s

    def __call__(self) -> Health:
        status, now_ns = self._engine.status(), self._clock.now_ns()
        engine = engine_health(status.heartbeat, now_ns, status.stuck_after_s or self._stuck_after_s)
        models = tuple(served.source.id for served in self._pool.loaded())
        problem = ""
        if not status.is_alive:
            problem = status.fault or "the engine is not running"
        elif engine.is_stuck:
            problem = f"the engine is stuck: {_described(engine)} for {engine.stuck_s(now_ns):.0f} s"
        elif not models:
            problem = "no model is loaded yet"
        elif self.draining.is_on:
            problem = "the server is draining"
        return Health(
            is_ready=not problem,
            is_running=status.is_alive,
            problem=problem,
            num_waiting=self._requests.num_waiting,
            num_running=status.num_running,
            waiting_for=self._waiting_for(status),
            models=models,
            engine=engine,
            doing="" if status.activity is None else status.activity.kind,
            doing_s=0.0 if status.activity is None else max(0, now_ns - status.activity.since_ns) / 1e9,
            last_loss=status.last_loss,
            stuck_s=engine.stuck_s(now_ns),
            loop_lag_s=self._loop_lag_s(),
            loading=status.loading,
            loading_left_s=None if status.loading is None else status.loading.seconds_left(now_ns),
        )

    def _waiting_for(self, status: EngineStatus) -> Mapping[str, int]:
        num_wanting_models = self._pool.num_waiting
        return {**status.waiting_for, **({WaitReason.MODEL.value: num_wanting_models} if num_wanting_models else {})}


def _described(health: EngineHealth) -> str:
    if health.stuck_in == WAITING:
        return "no open request has made progress"
    return "it has ended" if health.stuck_in == ENDED else f"{health.stuck_in} has not finished"
