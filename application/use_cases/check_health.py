"""Whether the server can do its work now: ready means the engine makes progress, not that the process exists."""

from collections.abc import Mapping
from dataclasses import dataclass

from application.ports.clock import Clock
from application.ports.engine import Engine, EngineStatus
from application.services.text_side.model_pool import ModelPool
from application.services.text_side.open_requests import OpenRequests
from domain.wait_reason import WaitReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`problem` is empty when ready. Counts are of requests. `waiting_for`: how many wait for what, by WaitReason."""

    is_ready: bool
    problem: str
    num_waiting: int
    num_running: int
    waiting_for: Mapping[str, int]
    models: tuple[str, ...]


class CheckHealth:
    def __init__(
        self, *, engine: Engine, requests: OpenRequests, pool: ModelPool, clock: Clock, stall_s: float
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._pool = pool
        self._clock = clock
        self._stall_s = stall_s

    def __call__(self) -> Health:
        status = self._engine.status()
        models = tuple(served.source.id for served in self._pool.loaded())
        problem = ""
        idle_s = (self._clock.now_ns() - status.last_progress_ns) / 1e9
        if not status.is_alive:
            problem = status.fault or "the engine is not running"
        elif status.is_busy and idle_s > self._stall_s:
            problem = f"the engine has made no progress for {idle_s:.0f} s"
        elif not models:
            problem = "no model is loaded yet"
        return Health(
            is_ready=not problem,
            problem=problem,
            num_waiting=self._requests.num_waiting,
            num_running=status.num_running,
            waiting_for=self._waiting_for(status),
            models=models,
        )

    def _waiting_for(self, status: EngineStatus) -> Mapping[str, int]:
        num_wanting_models = self._pool.num_waiting
        return {**status.waiting_for, **({WaitReason.MODEL.value: num_wanting_models} if num_wanting_models else {})}


__all__ = ("CheckHealth", "Health")
