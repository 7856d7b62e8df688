"""From the loss of an engine until another one has taken over: what is told of it meanwhile.

    is_brief       another one comes at once, and new requests wait for it; whether it moves it says itself
    not is_brief   so many were lost that it is not counted on: the engine has ended, until another one has taken over

`last`: what there was before; until there is another engine, it says so.
"""

from dataclasses import dataclass, replace

from application.events import EngineRestarted
from application.ports.engine import EngineStatus


@dataclass(slots=True)
class Downtime:
    """`why`: how the last one was lost. `num_tries`: engines that were begun since. Event loop only, but for
    `status`."""

    since_ns: int
    last: EngineStatus
    why: str
    is_brief: bool = True
    num_tries: int = 0

    @property
    def fault(self) -> str:
        return f"the engine is being restarted: {self.why}"

    def status(self, num_open: int, coming: EngineStatus | None) -> EngineStatus:
        """`num_open`: choices that wait. `coming`: of the engine that is to take over; None: there is none yet."""
        shown = coming if self.is_brief else None
        return replace(
            self.last,
            is_alive=self.is_brief,
            is_busy=bool(num_open),
            last_progress_ns=max(self.since_ns, shown.last_progress_ns if shown else 0),
            last_step_ns=max(self.since_ns, shown.last_step_ns if shown else 0),
            num_calls=shown.num_calls if shown else 0,
            num_waiting=num_open,
            num_running=0,
            activity=shown.activity if shown else None,
            fault=self.fault,
            loading=shown.loading if shown else None,
            coming=coming.heartbeat.waited_for() if coming and not shown else None,
        )

    def over(self, num_resumed: int, now_ns: int) -> EngineRestarted:
        """Another one has taken over."""
        return EngineRestarted(
            why=self.why,
            num_resumed=num_resumed,
            down_ns=now_ns - self.since_ns,
            num_tries=self.num_tries,
            at_ns=now_ns,
        )


__all__ = ("Downtime",)
