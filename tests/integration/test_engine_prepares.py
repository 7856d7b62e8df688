"""While nothing runs and nobody has come for a moment, the compute thread prepares for who comes next."""

from collections.abc import Iterator

import pytest

from adapters.fake.engine import FakeEngine
from adapters.fake.options import HYBRID, FakeOptions
from application.services.token_side.engine_thread import PATIENCE, QUIET_S
from domain.ids import ModelId
from tests.support.fake_service import wait_until
from tests.support.fault_bench import WAIT_S, FaultBench

NOBODY = ModelId("none")


class Preparing(FakeEngine):
    """`things`: how many there are to prepare. `seen`: how many sequences were open when one was prepared."""

    def __init__(self) -> None:
        super().__init__(default=FakeOptions(layout=HYBRID))
        self.things, self.num_asked = 0, 0
        self.seen: list[int] = []
        self.error: Exception | None = None

    def prepare_ahead(self) -> bool:
        super().prepare_ahead()
        self.num_asked += 1
        self.seen.append(sum(len(model.open_ids()) for model in self.loaded))
        if self.error is not None:
            raise self.error
        self.things -= 1
        return self.things >= 0


@pytest.fixture
def engine() -> Preparing:
    return Preparing()


@pytest.fixture
def bench(engine: Preparing) -> Iterator[FaultBench]:
    bench = FaultBench(make_backend=lambda: engine)
    bench.load()
    yield bench
    assert bench.loop.stop(WAIT_S)


def come_by(bench: FaultBench, times: int = 5) -> None:
    """Wakes the thread, as a worker does, and has been answered by it: it has gone round meanwhile."""
    for _ in range(times):
        bench.loop.engine.wake()
        bench.loop.unload(NOBODY).result(WAIT_S)


def quiet_until_asked(bench: FaultBench, engine: Preparing, times: int, at_once_s: float = QUIET_S) -> None:
    """A moment passes at each look: the thread may be at the end of something still."""

    def is_asked() -> bool:
        bench.clock.advance(at_once_s)
        return engine.num_asked >= times

    wait_until(is_asked, f"{times} looks for what to prepare")


def test_one_thing_after_the_other_is_prepared_once_it_is_quiet(bench: FaultBench, engine: Preparing) -> None:
    engine.things = 3
    come_by(bench)
    assert engine.num_asked == 0, "somebody was there a moment ago"
    quiet_until_asked(bench, engine, 4)
    bench.clock.advance(10 * QUIET_S)
    for _ in range(20):
        bench.loop.engine.wake()
    come_by(bench)
    assert engine.num_asked == 4, "there was nothing more, and nobody has asked for anything since"
    quiet_until_asked(bench, engine, 5)


def test_each_thing_more_waits_longer(bench: FaultBench, engine: Preparing) -> None:
    """Who comes meanwhile waits for it, and the likeliest is there already."""
    engine.things, begun_ns = 3, bench.clock.now_ns()
    quiet_until_asked(bench, engine, 3, at_once_s=QUIET_S / 10)
    assert bench.clock.now_ns() - begun_ns >= PATIENCE**2 * QUIET_S * 1e9


def test_it_prepares_again_after_each_request_and_never_beside_one(bench: FaultBench, engine: Preparing) -> None:
    for number in range(4):
        before = engine.num_asked
        bench.submit(f"r{number}", "a story", num_tokens=30)
        while not bench.inbox.items(f"r{number}"):
            bench.clock.advance(QUIET_S)  # however long it takes
        bench.end(f"r{number}")
        quiet_until_asked(bench, engine, before + 1)
    assert not any(engine.seen)


def test_what_fails_is_a_fault_and_is_not_tried_again_until_somebody_came(bench: FaultBench, engine: Preparing) -> None:
    engine.error = RuntimeError("planted")
    quiet_until_asked(bench, engine, 1)
    for _ in range(20):
        bench.loop.engine.wake()
        bench.clock.advance(QUIET_S)
    come_by(bench, times=1)
    assert engine.num_asked == 1
    assert bench.fault_names() == {"engine.prepare"}
    bench.submit("a", "a story")
    assert bench.tokens("a")
    quiet_until_asked(bench, engine, 2)
    assert bench.loop.status().is_alive
