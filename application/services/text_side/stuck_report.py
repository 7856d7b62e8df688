"""What is told of something that may be stuck: when it is seen, once a period while it lasts, and when it is over.

    well ──stuck──► told ──a period later──► told again ──► ...
      ▲               │
      └──it moves─────┘  told as well; stuck in something else: over, and told anew

Sans-io: health and times are given.
"""

from application.events import EngineRecovered, EngineStuck
from domain.engine_health import EngineHealth

TELL_AGAIN_S = 300.0


class StuckReport:
    """`feed` with every look."""

    def __init__(self, tell_again_s: float = TELL_AGAIN_S) -> None:
        self._tell_again_ns = int(tell_again_s * 1e9)
        self._open: tuple[str, int] | None = None
        self._told_ns = 0

    def feed(self, health: EngineHealth, now_ns: int) -> list[EngineStuck | EngineRecovered]:
        """`stack` is left to whoever can see it."""
        found = (health.stuck_in, health.stuck_since_ns) if health.stuck_since_ns is not None else None
        told: list[EngineStuck | EngineRecovered] = []
        if self._open is not None and found != self._open:
            stuck_in, since_ns = self._open
            told.append(EngineRecovered(stuck_in, now_ns - since_ns, now_ns))
            self._open = None
        if found is not None and (self._open is None or now_ns - self._told_ns >= self._tell_again_ns):
            told.append(_stuck(health, found[1], now_ns, is_first=self._open is None))
            self._open, self._told_ns = found, now_ns
        return told


def _stuck(health: EngineHealth, since_ns: int, now_ns: int, *, is_first: bool) -> EngineStuck:
    return EngineStuck(
        stuck_in=health.stuck_in,
        since_ns=since_ns,
        num_waiting=health.num_waiting,
        num_running=health.num_running,
        num_calls=health.num_calls,
        request_ids=health.request_ids,
        is_first=is_first,
        at_ns=now_ns,
    )


__all__ = ("TELL_AGAIN_S", "StuckReport")
