"""The reports of a child: their order, a batch that cannot be encoded, and the bound on unread ones."""

import threading
from dataclasses import replace
from typing import cast

import pytest

from adapters.engine_process import reports
from adapters.engine_process.channel import Channel
from adapters.engine_process.messages import Batch, Begun, Broken, EngineReply, Status, Stopped, ToParent, decoded, raw
from adapters.engine_process.reports import STATUS_AGE_S, Reports
from application.events import FaultObserved
from application.ports.engine import Ended, EngineStatus, StepBatch, Tokens
from domain.ids import RequestId
from domain.request.request import FinishReason, Usage
from tests.support.http.servers.fake_service import wait_until
from tests.support.patience import PATIENCE_S

ID = RequestId("a")
CALM = EngineStatus(is_alive=True, is_busy=True, last_progress_ns=0, last_step_ns=0, num_waiting=0, num_running=1)
UNWRITTEN = StepBatch(3, events=(FaultObserved("store", "a name of \udc80", 3),))


class Written:
    """The messages that a channel was given. `num_looks`: at its unsent bytes since `add` changed them."""

    def __init__(self) -> None:
        self.messages: list[ToParent] = []
        self.num_looks = self._num_unsent = 0
        self._lock = threading.Lock()

    @property
    def num_unsent_bytes(self) -> int:
        with self._lock:
            self.num_looks += 1
            return self._num_unsent

    def add(self, num_bytes: int) -> int:
        """Returns the unsent bytes."""
        with self._lock:
            self.num_looks = 0
            self._num_unsent += num_bytes
            return self._num_unsent

    def send(self, payload: bytes) -> None:
        self.messages.append(decoded(payload, ToParent))

    @property
    def kinds(self) -> list[type]:
        return [type(message) for message in self.messages]


class Bench:
    def __init__(self) -> None:
        self.written = Written()
        self.status = CALM
        self.broken: list[str] = []
        self.reports = Reports(cast(Channel, self.written), lambda: self.status, self.broken.append)


def tokens(at_ns: int) -> StepBatch:
    return StepBatch(at_ns, ((ID, 0, Tokens((7,))),))


def test_what_an_engine_tells_at_once_comes_behind_begun() -> None:
    bench = Bench()
    threads: list[threading.Thread] = []

    def start() -> None:
        threads.append(threading.Thread(target=bench.reports.batch, args=(tokens(1),)))
        threads[0].start()
        assert bench.written.messages == []

    bench.reports.begin(start)
    threads[0].join(PATIENCE_S)
    assert bench.written.kinds == [Begun, Batch]


def test_a_status_goes_with_news_and_once_in_a_while() -> None:
    bench, age_ns = Bench(), int(STATUS_AGE_S * 1e9)
    ended = StepBatch(1_003, ((ID, 0, Ended(Usage(1, 1), FinishReason.LENGTH)),))
    for batch in (tokens(1_000), tokens(1_001), StepBatch(1_002, num_left_queue=1), ended, tokens(1_003 + age_ns)):
        bench.reports.batch(batch)
    found = [message.status is not None for message in bench.written.messages if isinstance(message, Batch)]
    assert found == [True, False, True, True, True]


def test_no_status_comes_behind_a_later_one() -> None:
    """A thread that has read one sends it before another reads."""
    bench, reading, go_on = Bench(), threading.Event(), threading.Event()

    def read() -> EngineStatus:
        found = bench.status
        reading.set()
        assert go_on.wait(PATIENCE_S)
        return found

    reporting = Reports(cast(Channel, bench.written), read)
    first = threading.Thread(target=reporting.status)
    first.start()
    assert reading.wait(PATIENCE_S)
    bench.status = replace(CALM, num_running=0)
    second = threading.Thread(target=reporting.batch, args=(StepBatch(1, num_left_queue=1),))
    second.start()
    second.join(0.05)  # it waits: were there no lock, it would be told by now, for nothing else holds it
    go_on.set()
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    found = [message.status for message in bench.written.messages if isinstance(message, Status | Batch)]
    assert [status.num_running for status in found if status is not None] == [1, 0]


def test_who_reads_slowly_gets_answers_and_no_heartbeats() -> None:
    bench = Bench()
    bench.written.add(1)
    assert bench.reports.beat() == CALM
    bench.reports.say(EngineReply(1, raw(True)))
    bench.reports.status()
    assert bench.written.kinds == [EngineReply, Status]


def test_nothing_comes_behind_the_last_message() -> None:
    bench = Bench()
    bench.reports.say(Stopped(True))
    bench.reports.batch(tokens(1))
    bench.reports.status()
    bench.reports.say(EngineReply(1, raw(True)))
    assert bench.written.kinds == [Stopped]


def test_behind_a_batch_that_cannot_be_written_no_other_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.reports.batch(tokens(1))
    bench.reports.batch(UNWRITTEN)
    bench.reports.batch(tokens(4))
    bench.reports.say(Broken("so"))
    bench.reports.say(Stopped(True))
    assert bench.written.kinds == [Batch, Broken, Stopped]
    (why,) = bench.broken
    assert why.startswith("UnicodeEncodeError")
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_reader_that_stops_bounds_what_is_unsent_and_gets_all_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "HIGH_BYTES", 1_000)
    bench = Bench()
    turns = list[int]()

    def compute() -> None:
        for _ in range(100):
            bench.reports.hold()
            turns.append(bench.written.add(300))

    thread = threading.Thread(target=compute, daemon=True)
    thread.start()
    # It looks twice: the second time under the lock with which it waits, so that the next `moved` wakes it.
    wait_until(lambda: len(turns) == 4 and bench.written.num_looks == 2, "the compute thread to be held")
    bench.written.add(-300)
    bench.reports.moved()  # more than half is left: it stays held
    wait_until(lambda: bench.written.num_looks == 1, "the held thread to look again")
    assert turns == [300, 600, 900, 1_200]
    while thread.is_alive():
        if bench.written.num_unsent_bytes:
            bench.written.add(-100)
        bench.reports.moved()
    assert len(turns) == 100
    assert max(turns) <= 1_300, "the bound, and one turn"


def test_at_the_end_nothing_waits_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "HIGH_BYTES", 1_000)
    bench = Bench()
    bench.written.add(2_000)
    thread = threading.Thread(target=bench.reports.hold, daemon=True)
    thread.start()
    bench.reports.release()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
