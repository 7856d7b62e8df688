"""Every sequence of the engine from submission to its end, in order of arrival, and the choices of each request.

Compute thread, but for the counts: any thread, and they may be a step old.
"""

from collections.abc import Iterator

from application.services.token_side.sequence_run import SequenceRun
from domain.ids import RequestId, SequenceId
from domain.scheduling.sequence import WAITING, Phase


class RunTable:
    def __init__(self) -> None:
        self._runs: dict[SequenceId, SequenceRun] = {}
        self._by_request: dict[RequestId, dict[int, SequenceRun]] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[SequenceRun]:
        """As they are now: what is taken out meanwhile still comes."""
        return iter(tuple(self._runs.values()))

    def __contains__(self, run: SequenceRun) -> bool:
        return run.id in self._runs

    @property
    def num_running(self) -> int:
        """Sequences that hold a place in the batch."""
        return sum(run.sequence.phase not in WAITING for run in tuple(self._runs.values()))

    def add(self, run: SequenceRun) -> None:
        self._runs[run.id] = run
        self._by_request.setdefault(run.submission.id, {})[run.choice] = run

    def remove(self, run: SequenceRun) -> None:
        del self._runs[run.id]
        choices = self._by_request[run.submission.id]
        del choices[run.choice]
        if not choices:
            del self._by_request[run.submission.id]

    def of_ids(self, ids: tuple[SequenceId, ...]) -> list[SequenceRun]:
        """Those of them that have not ended."""
        return [run for id in ids if (run := self._runs.get(id)) is not None]

    def choices(self, id: RequestId) -> list[SequenceRun]:
        return list(self._by_request.get(id, {}).values())

    def followers(self, leader: SequenceRun) -> list[SequenceRun]:
        """The choices that wait for this one's state."""
        return [run for run in self.choices(leader.submission.id) if run.leader is leader]

    def unled(self) -> list[SequenceRun]:
        """Those that wait for no other choice: only these are in a phase."""
        return [run for run in self._runs.values() if run.leader is None]

    def in_phase(self, *phases: Phase) -> list[SequenceRun]:
        return [run for run in self._runs.values() if run.leader is None and run.sequence.phase in phases]
