"""What several sequences ask for is done in one hand-over, and each is told what became of its own."""

from concurrent.futures import Future
from threading import Event

import pytest

from adapters.llguidance.rounds import Rounds
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from tests.support.held_workers import HeldWorkers
from tests.support.patience import PATIENCE_S


def test_what_is_asked_for_until_a_worker_begins_is_one_hand_over():
    workers = HeldWorkers()
    rounds: Rounds[int] = Rounds(workers)
    told = [rounds.submit(lambda number=number: number) for number in range(5)]
    assert workers.num_held == 1
    workers.release()
    assert [future.result(PATIENCE_S) for future in told] == list(range(5))
    assert rounds.submit(lambda: 7).result(PATIENCE_S) == 7


def test_a_piece_that_fails_fails_alone():
    workers = HeldWorkers()
    rounds: Rounds[float] = Rounds(workers)
    told = [rounds.submit(lambda divisor=divisor: 1 / divisor) for divisor in (1, 0, 2)]
    workers.release()
    assert told[0].result(PATIENCE_S) == 1
    assert isinstance(told[1].exception(PATIENCE_S), ZeroDivisionError)
    assert told[2].result(PATIENCE_S) == 0.5


def test_a_piece_that_hangs_holds_up_no_later_round():
    lane, begun, gate = Lane("test", 2), Event(), Event()
    rounds: Rounds[bool] = Rounds(lane)

    def hang() -> bool:
        begun.set()
        return gate.wait(PATIENCE_S)

    stuck = rounds.submit(hang)
    try:
        assert begun.wait(PATIENCE_S)
        assert rounds.submit(lambda: True).result(PATIENCE_S)
        assert not stuck.done()
    finally:
        gate.set()
        assert stuck.result(PATIENCE_S)
        lane.close()


def test_what_waits_when_the_lane_closes_is_cancelled():
    lane, gate = Lane("test", 1), Event()
    lane.submit(gate.wait, PATIENCE_S)
    rounds: Rounds[int] = Rounds(lane)
    told: list[Future[int]] = [rounds.submit(lambda: 1) for _ in range(2)]
    lane.close()
    assert all(future.cancelled() for future in told)
    with pytest.raises(ServerUnavailable):
        rounds.submit(lambda: 1)
    gate.set()
