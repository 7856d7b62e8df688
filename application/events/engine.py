"""Telemetry events of the engine and the socket: steps, models, faults; see `application/events`."""

from dataclasses import dataclass

from domain.ids import ModelId


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompleted:
    """One engine step: how many sequences waited and ran, and what it computed."""

    num_waiting: int
    num_running: int
    num_prefill_tokens: int
    num_decode_tokens: int
    started_ns: int
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded:
    """`active_bytes`: what the compute backend holds afterwards, over all models."""

    id: ModelId
    duration_ns: int
    weight_bytes: int
    decode_mode: str
    note: str
    at_ns: int
    active_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    """`active_bytes` as in ModelLoaded."""

    id: ModelId
    at_ns: int
    active_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FaultObserved:
    """Something failed and was contained. `where` is a stable name such as `engine.step`."""

    where: str
    message: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class HttpRefused:
    """A connection or a request that was turned away, or cut off, before its body was looked at; or for what its key
    does not allow. `reason` is one of a few codes; `detail` may hold what a client sent, made harmless and short."""

    reason: str
    detail: str
    at_ns: int
