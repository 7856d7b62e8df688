"""Requests that are not in the queue yet: their model is looked for or loaded, or their prompt is made into tokens.

    enter ──► model ──► prompt ──► left: submitted, refused, or its client is gone
                 └─────────┴── cancel: whoever waits inside gets RequestCancelled, or why else it ends

Cancelling ends the waiting, whatever it is for, as a deadline does: by asyncio's own cancellation, made an error again
where it leaves. What is prepared holds nothing afterwards that it would not release for a client that leaves.
"""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from domain.errors import DomainError, RequestCancelled
from domain.ids import RequestId
from domain.request.request import GenerationRequest


@dataclass(slots=True)
class Preparation:
    """`has_model`: it waits for its model no longer."""

    request: GenerationRequest
    started_ns: int
    has_model: bool = False


@dataclass(slots=True)
class _Waiting:
    preparation: Preparation
    task: "asyncio.Task[object]"
    num_cancelled: int
    cancelled_for: DomainError | None = None


class Preparations:
    """Event loop only."""

    def __init__(self) -> None:
        self._waiting: dict[RequestId, _Waiting] = {}

    def all(self) -> Sequence[Preparation]:
        """The longest waiting first."""
        return [one.preparation for one in self._waiting.values()]

    @contextmanager
    def of(self, request: GenerationRequest, started_ns: int) -> Generator[Preparation]:
        """Around everything that is done for it before it is submitted. Raises from inside what `cancel` is given."""
        task = asyncio.current_task()
        assert task is not None  # Event loop only
        waiting = self._waiting[request.id] = _Waiting(Preparation(request, started_ns), task, task.cancelling())
        try:
            yield waiting.preparation
        except asyncio.CancelledError:
            if waiting.cancelled_for is not None and task.uncancel() <= waiting.num_cancelled:
                raise waiting.cancelled_for from None
            raise  # its client left too
        finally:
            del self._waiting[request.id]

    def cancel(self, id: RequestId, why: DomainError | None = None) -> bool:
        """False for one that is not prepared now. `why`: what its client is told, if that is no RequestCancelled."""
        waiting = self._waiting.get(id)
        if waiting is None:
            return False
        if waiting.cancelled_for is None:
            waiting.cancelled_for = why or RequestCancelled()
            waiting.task.cancel()
        return True
