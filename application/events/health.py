"""Telemetry events of the engine's health; see `application/events`."""

from dataclasses import dataclass

from domain.ids import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStuck:
    """The engine does not move, or the event loop does not: emitted when it is seen, and once a period while it lasts.

    `stuck_in` and `request_ids` as in `domain/engine_health`; `stack`: what the thread that hangs was doing, in lines
    of Python, without a value of any variable; empty where it cannot be had. `is_first`: it was not reported before.
    """

    stuck_in: str
    since_ns: int
    num_waiting: int
    num_running: int
    num_calls: int
    at_ns: int
    request_ids: tuple[RequestId, ...] = ()
    stack: str = ""
    is_first: bool = True


@dataclass(frozen=True, slots=True)
class EngineRecovered:
    """The engine or loop that was stuck in `stuck_in` moves again, `stuck_ns` after it began to hang."""

    stuck_in: str
    stuck_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class ReadinessMeasured:
    """Whether a model is served and the engine moves, as `/health/ready` says. Told every few seconds."""

    is_ready: bool
    at_ns: int


@dataclass(frozen=True, slots=True)
class EngineRestarted:
    """The engine was lost, `down_ns` ago, and another one has taken over: `num_resumed` choices go on in it. `why`: how
    the last one ended; `num_tries`: how many were started until one came up."""

    why: str
    num_resumed: int
    down_ns: int
    num_tries: int
    at_ns: int
