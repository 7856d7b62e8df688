"""Steps that threads build and hand over: in order, beside this thread, and nothing is evaluated meanwhile."""

import gc
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType

import mlx.core as mx
import pytest

from adapters.mlx import arrays
from adapters.mlx.arrays import evaluate, read_back, read_queued
from adapters.mlx.sampled import Sampled
from adapters.mlx.step_threads import StepThreads

LONG_S, SHORT_S = 20.0, 0.05

NEVER_CLOSED = """
import mlx.core as mx
from adapters.mlx.step_threads import StepThreads
kept = StepThreads()
for _ in range(4):
    kept.queue(lambda: [mx.arange(9) + 1])
"""


class Gate:
    """Hands over by MLX's own call, but waits to be opened first; or fails, once."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.given: list[list[mx.array]] = []
        self.fails_with: BaseException | None = None

    def __call__(self, given: Iterable[mx.array]) -> None:
        assert self.is_open.wait(LONG_S)
        error, self.fails_with = self.fails_with, None
        if error is not None:
            raise error
        self.given.append(list(given))
        arrays.hand_over(self.given[-1])


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def threads(gate: Gate) -> Iterator[StepThreads]:
    threads = StepThreads(hand_over=gate)
    yield threads
    gate.is_open.set()
    threads.close()


def one(value: int = 1) -> mx.array:
    return mx.array([value], mx.uint32) + 0


def values(step: list[mx.array]) -> list[int]:
    return [number for words in step for number in read_queued(words).tolist()]


def test_each_step_goes_on_from_the_one_before(threads: StepThreads) -> None:
    found, held = list[int](), one(0)

    def build() -> list[mx.array]:
        nonlocal held
        held = held + 1
        return [held]

    for _ in range(200):
        step = threads.queue(build)
        step.wait()
        found.append(int(read_queued(held)[0]))
    assert found == list(range(1, 201))


def test_a_step_is_handed_over_while_this_thread_goes_on_and_the_next_is_built(
    threads: StepThreads, gate: Gate
) -> None:
    gate.is_open.clear()
    first = threads.queue(lambda: [one()])
    has_built, seconds = threading.Event(), list[object]()

    def build() -> list[mx.array]:
        has_built.set()
        return [one(2)]

    def open_when_built() -> None:
        assert has_built.wait(LONG_S)
        seconds.append(gate.given[:])
        gate.is_open.set()

    opener = threading.Thread(target=open_when_built)
    opener.start()
    threads.queue(build)
    opener.join()
    assert seconds == [[]]  # the second was built before the first was handed over
    first.wait()
    threads.finish()
    assert [values(step) for step in gate.given] == [[1], [2]]


def test_whoever_evaluates_waits_for_its_turn(threads: StepThreads, gate: Gate) -> None:
    gate.is_open.clear()
    threads.queue(lambda: [one()])
    began = time.monotonic()
    threading.Timer(SHORT_S, gate.is_open.set).start()
    evaluate([one(2)])
    assert time.monotonic() - began >= SHORT_S
    assert len(gate.given) == 1


def test_reading_what_is_queued_does_not(threads: StepThreads, gate: Gate) -> None:
    words = one(7)
    threads.queue(lambda: [words]).wait()
    gate.is_open.clear()
    threads.queue(lambda: [one()])
    assert read_queued(words).tolist() == [7]
    assert len(gate.given) == 1


def test_a_step_that_evaluates_while_it_is_built_waits_for_the_one_before(threads: StepThreads, gate: Gate) -> None:
    gate.is_open.clear()
    threads.queue(lambda: [one()])
    threading.Timer(SHORT_S, gate.is_open.set).start()
    threads.queue(lambda: [mx.array(read_back(one(3) * 2))])
    threads.finish()
    assert [values(step) for step in gate.given] == [[1], [6]]


def test_what_building_raises_is_raised_here_and_the_next_step_is_fine(threads: StepThreads, gate: Gate) -> None:
    def build() -> list[mx.array]:
        raise ValueError("no such row")

    with pytest.raises(ValueError, match="no such row"):
        threads.queue(build)
    threads.queue(lambda: [one(4)]).wait()
    assert [values(step) for step in gate.given if step] == [[4]]


def test_even_what_would_end_a_thread(threads: StepThreads) -> None:
    def build() -> list[mx.array]:
        raise SystemExit(3)

    for _ in range(2):
        with pytest.raises(SystemExit):
            threads.queue(build)
    threads.queue(lambda: [one()]).wait()


def test_what_handing_over_raises_is_told_by_that_step_alone(threads: StepThreads, gate: Gate) -> None:
    gate.fails_with = RuntimeError("out of memory")
    lost, fine = threads.queue(lambda: [one()]), threads.queue(lambda: [one()])
    fine.wait()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            lost.wait()


def test_a_step_that_was_handed_over_is_held_by_nobody(threads: StepThreads) -> None:
    class Held:
        pass

    held = Held()
    seen = weakref.ref(held)
    threads.queue(lambda held=held: [one()] if held else []).wait()
    del held
    threads.finish()
    deadline = time.monotonic() + LONG_S
    while seen() is not None and time.monotonic() < deadline:
        gc.collect()
    assert seen() is None


def test_closing_ends_the_threads_and_nobody_waits_any_more() -> None:
    before, stream = threading.active_count(), mx.default_stream(mx.default_device())
    gate = Gate()
    threads = StepThreads(hand_over=gate)
    assert threading.active_count() == before + 2
    assert mx.default_stream(mx.default_device()) != stream
    threads.queue(lambda: [one()])
    threads.close()
    assert len(gate.given) == 1
    assert threading.active_count() == before
    assert mx.default_stream(mx.default_device()) == stream
    evaluate([one()])


def test_each_thread_is_prepared() -> None:
    seen: list[str] = []
    threads = StepThreads(lambda: seen.append(threading.current_thread().name))
    for _ in range(2):
        threads.queue(lambda: [one()])
    threads.close()
    assert sorted(seen) == sorted([threading.current_thread().name, "cairn-step-0", "cairn-step-1"])


def test_what_is_read_of_a_step_is_not_what_is_fed() -> None:
    """MLX notes at an array that is used again that it is there, while another thread may be waiting for it."""
    sampled = Sampled.of(one())
    assert all(outcome.words is not sampled.fed for outcome in sampled.outcomes)
    assert {id(array) for array in sampled.arrays()} >= {id(outcome.words) for outcome in sampled.outcomes}
    evaluate(sampled.arrays())
    assert sampled.token_ids() == [1]


def test_who_is_interrupted_waiting_gets_no_other_answer_later(threads: StepThreads, gate: Gate) -> None:
    goes_on, main = threading.Event(), threading.get_ident()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not goes_on.is_set():
            goes_on.set()
            raise KeyboardInterrupt

    def build() -> list[mx.array]:
        while not goes_on.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)
            goes_on.wait(SHORT_S)
        return [one()]

    before = signal.signal(signal.SIGUSR1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        threads.queue(build)
    has_built: list[int] = []

    def next_build() -> list[mx.array]:
        time.sleep(SHORT_S)  # an answer to the first would come sooner
        has_built.append(1)
        return [one(2)]

    threads.queue(next_build)
    assert has_built == [1]
    threads.finish()
    signal.signal(signal.SIGUSR1, before)
    assert [2] in [values(step) for step in gate.given]


@pytest.mark.parametrize("fails_in", ["cairn-step-1", threading.main_thread().name])
def test_threads_that_cannot_be_prepared_leave_nothing_behind(fails_in: str) -> None:
    before, stream = threading.active_count(), mx.default_stream(mx.default_device())

    def prepare() -> None:
        if threading.current_thread().name == fails_in:
            raise RuntimeError("no context")

    with pytest.raises(RuntimeError, match="no context"):
        StepThreads(prepare)
    assert threading.active_count() == before
    assert mx.default_stream(mx.default_device()) == stream
    StepThreads().close()


def test_one_thread_has_no_two_of_them(threads: StepThreads, gate: Gate) -> None:
    """Nobody would wait for the first ones."""
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="others"):
        StepThreads()
    assert threading.active_count() == before
    test_whoever_evaluates_waits_for_its_turn(threads, gate)


def test_nothing_is_built_after_closing(threads: StepThreads) -> None:
    for _ in range(2):
        threads.close()
    with pytest.raises(RuntimeError, match="nobody"):
        threads.queue(lambda: [one()])


def test_a_process_that_never_closes_them_ends_well() -> None:
    ended = subprocess.run([sys.executable, "-c", NEVER_CLOSED], capture_output=True, timeout=LONG_S, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("is_built", [False, True])
def test_a_failure_holds_nothing_that_was_built(threads: StepThreads, gate: Gate, is_built: bool) -> None:
    """Not even until the collector comes: it may take long, and a frame holds what a whole step computes on."""

    class Held:
        pass

    seen: list[weakref.ref[Held]] = []

    def build() -> list[mx.array]:
        held = Held()
        seen.append(weakref.ref(held))
        if not is_built:
            raise ValueError("no such row")
        return [one()]

    def fail() -> None:
        held = Held()
        seen.append(weakref.ref(held))
        gate.fails_with = RuntimeError("out of memory") if is_built else None
        try:
            threads.queue(build).wait()
        except (RuntimeError, ValueError):
            return
        raise AssertionError(held)

    gc.disable()
    try:
        fail()
        threads.finish()
        deadline = time.monotonic() + LONG_S
        while any(ref() is not None for ref in seen) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()
