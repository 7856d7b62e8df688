"""What the compute thread says of itself: what it does now, since when, and when it last got something done.

It says what it begins; that it begins something is what tells that the thing before has ended. Only the compute thread
writes; any thread may read, and sees what was true a moment ago.
"""

from collections.abc import Callable, Collection

from application.services.token_side.sequence_run import SequenceRun
from domain.engine_health import Activity
from domain.ids import RequestId


class Pulse:
    """`now_ns`: any thread."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.last_step_ns = now_ns()
        """When a step, a call or a piece of a load last ended, or a call was taken up."""
        self._does: tuple[str, int, Collection[SequenceRun]] = ("start", self.last_step_ns, ())

    @property
    def last_progress_ns(self) -> int:
        """When something last ended, the idle thread's waking up included."""
        return self._does[1]

    @property
    def activity(self) -> Activity:
        kind, since_ns, runs = self._does
        ids: dict[RequestId, None] = dict.fromkeys(run.request_id for run in tuple(runs))
        return Activity(kind, since_ns, tuple(ids))

    def begin(self, kind: str, runs: Collection[SequenceRun] = ()) -> None:
        """`runs`: for whom; nobody changes it any more."""
        self._does = (kind, self._now_ns(), runs)

    def step(self) -> None:
        """Something that was asked for is done, or taken up."""
        self.last_step_ns = self._now_ns()


__all__ = ("Pulse",)
