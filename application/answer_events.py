"""Telemetry events of answers as they are read; see `application/events`."""

from dataclasses import dataclass

from domain.ids import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerParsed:
    """An answer was read to its end, or as far as it came. `family`: of the parser, empty where all is text.
    `parse_ns`: what reading it took of the event loop, between `started_ns` and `at_ns`. `problems`: ProblemKind values
    of the calls that cannot be run as they are. `has_failed`: its parser raised, which ended the answer."""

    id: RequestId
    family: str
    num_calls: int
    problems: tuple[str, ...]
    parse_ns: int
    started_ns: int
    at_ns: int
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallProblems:
    """Calls of an answer that whoever runs them cannot run as they are. `kinds`: ProblemKind values, one a call."""

    id: RequestId
    kinds: tuple[str, ...]
    at_ns: int


__all__ = ("AnswerParsed", "ToolCallProblems")
