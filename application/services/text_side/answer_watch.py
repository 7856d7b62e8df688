"""What reading answers takes of the event loop, and what it found: for telemetry, one event an answer.

Event loop only. What is kept of an answer is forgotten with `ended`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from application.answer_events import AnswerParsed
from application.ports.clock import Clock
from application.ports.engine import Ended, Tokens
from application.services.text_side.generation import Generation
from domain.ids import RequestId
from domain.request import choice_id
from domain.stream import Failed, Finished


@dataclass(slots=True)
class _Reading:
    started_ns: int
    parse_ns: int = 0
    has_failed: bool = False


class AnswerWatch:
    """See the module docstring."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[tuple[RequestId, int], _Reading] = {}

    @property
    def num_open(self) -> int:
        """Answers that something is kept of; for leak checks."""
        return len(self._open)

    def read(
        self, generation: Generation, choice: int, item: Tokens | Ended, started_ns: int, *, has_failed: bool
    ) -> None:
        """Some of an answer, or its end, was read, from `started_ns` until now."""
        key = (generation.request.id, choice)
        reading = self._open.get(key)
        if reading is None:
            if isinstance(item, Ended) and not has_failed:
                return
            reading = self._open[key] = _Reading(started_ns)
        reading.parse_ns += self._clock.now_ns() - started_ns
        reading.has_failed |= has_failed

    def ended(self, generation: Generation, choice: int, outcome: Finished | Failed) -> Iterator[AnswerParsed]:
        """Nothing of this answer is read any more. Nothing is told of one of which nothing was."""
        reading = self._open.pop((generation.request.id, choice), None)
        if reading is None:
            return
        pipeline = generation.pipeline(choice)
        problems = outcome.call_problems if isinstance(outcome, Finished) else ()
        yield AnswerParsed(
            id=choice_id(generation.request.id, choice),
            family=pipeline.family,
            num_calls=pipeline.num_calls,
            problems=tuple(problem.kind.value for problem in problems),
            parse_ns=reading.parse_ns,
            started_ns=reading.started_ns,
            at_ns=self._clock.now_ns(),
            has_failed=reading.has_failed,
        )


__all__ = ("AnswerWatch",)
