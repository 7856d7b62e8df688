"""Whatever a neighbour of the engine loop raises, it costs the request it happened to: the loop goes on, says what
happened, leaves nothing behind, and answers the next one."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any, Protocol, cast

import pytest

from adapters.memory.block_store import MemoryBlockStore
from application.ports.compute import ComputeEngine, DeviceFailed, LoadedModel
from application.services.prefix.cache import PrefixCache
from application.services.prefix.no_reuse import NoReuse
from domain.errors import ComputeFailed, ModelLoadFailed, ServerUnavailable
from domain.ids import ModelId
from domain.models.model_card import LoadOptions
from domain.prefix.explanation import Explanation, StopReason
from tests.support.engines.compute_faults import ENGINE_OPERATIONS, MODEL_OPERATIONS
from tests.support.telemetry.fault_bench import MODEL, WAIT_S, FaultBench

SHARED = "a beginning that two prompts have in common, long enough to be kept " * 3
OTHER = "something else that shares nothing with it " * 4


@pytest.fixture
def bench() -> Iterator[FaultBench]:
    bench = FaultBench()
    yield bench
    assert bench.loop.stop(WAIT_S)


def answers() -> dict[str, list[int]]:
    """What the model says when nothing fails."""
    bench = FaultBench()
    bench.load()
    for text in (SHARED + "one", SHARED + "two", OTHER):
        bench.submit(text, text)
    found = {text: bench.tokens(text) for text in (SHARED + "one", SHARED + "two", OTHER)}
    assert bench.loop.stop(WAIT_S)
    return found


EXPECTED = answers()


def check_next_is_answered(bench: FaultBench) -> None:
    bench.faults.disarm()
    bench.submit("next", SHARED + "two")
    assert bench.end("next").error is None
    assert bench.tokens("next") == EXPECTED[SHARED + "two"]
    bench.check_idle()


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("error", [ComputeFailed("planted"), RuntimeError("planted")], ids=["allowed", "defect"])
@pytest.mark.parametrize("operation", MODEL_OPERATIONS)
def test_a_model_that_raises_costs_at_most_the_requests_it_computes(
    bench: FaultBench, operation: str, error: Exception, is_after: bool
) -> None:
    bench.load()
    bench.submit("first", SHARED + "one")
    assert bench.tokens("first") == EXPECTED[SHARED + "one"]
    bench.faults.arm(operation, error, is_after=is_after)
    for id, text in (("b", SHARED + "two"), ("c", OTHER)):
        bench.submit(id, text)
    ends = {id: bench.end(id) for id in "bc"}
    for id, text in (("b", SHARED + "two"), ("c", OTHER)):
        output = bench.tokens(id)
        assert output == EXPECTED[text][: len(output)]
        assert ends[id].error is not None or output == EXPECTED[text]
    if operation != "decode":  # which computes for both, and told neither
        assert any(end.error is None for end in ends.values())
    check_next_is_answered(bench)
    if bench.faults.strikes.get(operation) and isinstance(error, RuntimeError):
        assert bench.fault_names(), "it failed, and nobody was told"


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("operation", ["load", "description"])
def test_a_load_that_raises_is_reported_and_can_be_repeated(bench: FaultBench, operation: str, is_after: bool) -> None:
    bench.faults.arm(operation, RuntimeError("planted"), is_after=is_after)
    with pytest.raises(ModelLoadFailed, match="planted"):
        bench.load()
    if (operation, is_after) != ("load", True):  # which gave nothing back that could be unloaded
        assert bench.inner.loaded == []
    bench.load()
    assert bench.fault_names()
    check_next_is_answered(bench)


def test_a_memory_reading_that_raises_costs_no_load(bench: FaultBench) -> None:
    bench.faults.arm("memory", RuntimeError("planted"))
    bench.load()
    assert len(bench.inner.loaded) == 1
    assert bench.fault_names()
    check_next_is_answered(bench)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("operation", ["unload", "memory"])
def test_an_unload_that_raises_ends_its_requests_and_nothing_else(
    bench: FaultBench, operation: str, is_after: bool
) -> None:
    bench.load()
    bench.faults.arm(operation, RuntimeError("planted"), is_after=is_after)
    bench.loop.unload(MODEL).result(WAIT_S)
    assert bench.fault_names()
    bench.load()
    check_next_is_answered(bench)


@pytest.mark.parametrize("operation", ["unload", "close", "close_engine", "memory"])
def test_an_end_that_raises_is_an_end(operation: str) -> None:
    bench = FaultBench()
    bench.load()
    bench.submit("a", OTHER, num_tokens=100_000)
    bench.faults.arm(operation, RuntimeError("planted"), times=1 << 30)
    assert bench.loop.stop(WAIT_S)
    error = bench.end("a").error
    assert error is not None
    assert isinstance(error.to_error(), ServerUnavailable)
    if operation != "close_engine":
        assert bench.inner.is_closed
    assert bench.loop.status().num_waiting == 0


@pytest.mark.parametrize(
    "operation", ["prefill", "start_decode", "decode", "capture_blocks", "capture_snapshot", "restore"]
)
def test_a_device_that_fails_ends_the_engine_with_everybody(operation: str) -> None:
    """No other engine resumes them here, and no request gets what was captured."""
    bench = FaultBench()
    bench.load()
    bench.submit("before", SHARED + "one")
    assert bench.tokens("before") == EXPECTED[SHARED + "one"]
    assert bench.hot.usage().num_blocks
    bench.faults.arm(operation, DeviceFailed("planted"))
    for id, text in (("b", SHARED + "two"), ("c", OTHER)):
        bench.submit(id, text, num_tokens=1000, num_choices=2)
    for id in ("b", "c", "b.1", "c.1"):
        error = bench.end(id).error
        assert error is not None
        assert (error.kind, error.message) == ("ServerUnavailable", "the engine stopped: the device failed: planted")
    assert bench.loop.stop(WAIT_S)
    assert (bench.hot.usage().num_blocks, bench.hot.usage().num_snapshots) == (0, 0)
    assert "engine.device" in bench.fault_names()
    assert bench.loop.status().fault == "the engine stopped: the device failed: planted"
    with pytest.raises(ServerUnavailable, match="the device failed: planted"):
        bench.submit("after", OTHER)


@pytest.mark.parametrize("operation", ["load", "unload"])
def test_a_device_that_fails_between_steps_answers_who_called(operation: str) -> None:
    bench = FaultBench()
    if operation == "unload":
        bench.load()
    bench.faults.arm(operation, DeviceFailed("planted"))
    answer: Future[Any] = (
        bench.loop.unload(MODEL) if operation == "unload" else bench.loop.load(bench.source, LoadOptions())
    )
    with pytest.raises(ServerUnavailable, match="planted"):
        answer.result(WAIT_S)
    assert bench.loop.stop(WAIT_S)
    assert bench.inner.is_closed


def test_a_device_that_fails_at_the_end_is_an_end() -> None:
    bench = FaultBench()
    bench.load()
    bench.faults.arm("close_engine", DeviceFailed("planted"))
    assert bench.loop.stop(WAIT_S)
    assert "engine.device" in bench.fault_names()


def test_every_operation_of_the_port_can_be_made_to_fail() -> None:
    def named(protocol: type) -> set[str]:
        parts = [part for part in protocol.__mro__ if part is not Protocol]
        return {name for part in parts for name in vars(part) if not name.startswith("_")}

    assert set(MODEL_OPERATIONS) == named(LoadedModel)
    assert set(ENGINE_OPERATIONS) == {"close_engine" if name == "close" else name for name in named(ComputeEngine)}


def test_a_close_that_always_raises_ends_no_engine(bench: FaultBench) -> None:
    bench.load()
    bench.faults.arm("close", RuntimeError("planted"), times=1 << 30)
    for number in range(3):
        bench.submit(str(number), OTHER)
        assert bench.tokens(str(number)) == EXPECTED[OTHER]
    assert bench.loop.status().is_alive
    assert bench.fault_names() == {"engine.close"}


# ---- the prefix cache ----------------------------------------------------------------------------------------------


class UnreliableStore(MemoryBlockStore):
    """Breaks its contract: raises at the next call of `fails_at`."""

    fails_at = ""

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "fails_at") and name:
            self.fails_at = ""
            raise OSError(f"no {name}")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("operation", ["keys", "get", "put", "open_namespace", "touch", "delete"])
def test_a_store_that_raises_costs_one_request_at_most(operation: str) -> None:
    store = UnreliableStore(None)
    bench = FaultBench(store)
    bench.load()
    bench.submit("first", SHARED + "one")
    assert bench.tokens("first") == EXPECTED[SHARED + "one"]
    bench.hot.resize(0)
    bench.hot.resize(1 << 28)
    store.fails_at = operation
    for id, text in (("b", SHARED + "two"), ("c", OTHER)):
        bench.submit(id, text)
    ends = [bench.end(id) for id in "bc"]
    assert sum(end.error is not None for end in ends) <= 1
    store.fails_at = ""
    check_next_is_answered(bench)
    assert bench.loop.stop(WAIT_S)


class UnplannableSequence(NoReuse):
    @property
    def stops(self) -> tuple[int, ...]:
        raise ArithmeticError("no such position")


class OddCache(PrefixCache):
    """Its first sequence cannot be planned with, which is no one sequence's failure to the loop."""

    num_begun = 0

    def begin(self, *arguments: Any, **named: Any) -> Any:
        self.num_begun += 1
        if self.num_begun == 1:
            return UnplannableSequence(Explanation(1, StopReason.DISABLED))
        return super().begin(*arguments, **named)


def test_a_step_that_fails_as_a_whole_ends_what_runs_and_not_the_engine() -> None:
    bench = FaultBench(make_cache=OddCache)
    bench.load()
    bench.submit("a", OTHER)
    error = bench.end("a").error
    assert error is not None
    assert isinstance(error.to_error(), ComputeFailed)
    assert "engine.step" in bench.fault_names()
    check_next_is_answered(bench)
    assert bench.loop.stop(WAIT_S)


# ---- the thread's end ----------------------------------------------------------------------------------------------


def test_nothing_that_comes_while_the_engine_ends_waits_for_ever() -> None:
    """Commands from four threads, until the engine has long ended: each is answered or refused."""
    bench = FaultBench()
    bench.load()
    loads: list[Future[object]] = []
    submitted: list[str] = []
    refused = threading.Event()

    def submit(worker: int) -> None:
        number = 0
        while True:
            id, number = f"{worker}.{number}", number + 1
            try:
                bench.submit(id, "x", num_tokens=1)
            except ServerUnavailable:
                refused.set()
                return
            submitted.append(id)

    def load() -> None:
        while not refused.is_set():
            loads.append(bench.loop.load(bench.source, LoadOptions()))
        loads.append(bench.loop.load(bench.source, LoadOptions()))

    threads = [threading.Thread(target=submit, args=(worker,)) for worker in range(3)] + [threading.Thread(target=load)]
    for thread in threads:
        thread.start()
    assert bench.loop.stop(WAIT_S)
    for thread in threads:
        thread.join(WAIT_S)
    for id in submitted:
        assert bench.end(id)
    assert not wait(loads, WAIT_S).not_done


def test_a_call_that_raises_while_the_engine_refuses_them_costs_no_other_call() -> None:
    """The backend cannot be made while calls wait already; the first of them cannot be carried out at all."""
    gate = threading.Event()

    def make() -> ComputeEngine:
        assert gate.wait(WAIT_S)
        raise RuntimeError("no device")

    bench = FaultBench(make_backend=make)
    bench.submit("odd", "x", model=cast(ModelId, []))  # no name at all: nothing can be found by it
    bench.submit("next", "x")
    load = bench.loop.load(bench.source, LoadOptions())
    gate.set()
    assert bench.end("next").error is not None
    with pytest.raises(ServerUnavailable, match="no device"):
        load.result(WAIT_S)
    assert bench.loop.stop(WAIT_S)
    with pytest.raises(ServerUnavailable, match="no device"):
        bench.submit("late", "x")
    assert "engine.call" in bench.fault_names()
