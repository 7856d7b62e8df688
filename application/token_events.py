"""Telemetry events of tokens; see `application/events`."""

from dataclasses import dataclass

from domain.ids import RequestId


@dataclass(frozen=True, slots=True)
class TokensReceived:
    """Tokens that the engine handed over together, one event a step: how many of which choice."""

    counts: tuple[tuple[RequestId, int], ...]
    at_ns: int


__all__ = ("TokensReceived",)
