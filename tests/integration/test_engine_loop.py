"""The engine loop on the toy engine: streams, cancellation in every phase, isolation of failures, bounds, shutdown."""

import threading
from collections.abc import Callable, Iterator

import pytest

from adapters.fake.clock import FakeClock
from adapters.fake.engine import FakeEngine
from adapters.fake.models import FakeModels
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.events import ModelLoaded, ModelUnloaded
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.sequence_run import Submission
from domain.errors import ComputeFailed, DomainError, QueueFull, ServerUnavailable
from domain.ids import ModelId, RequestId, SequenceId
from domain.request import FinishReason, GenerationRequest, TextPrompt
from domain.sampling import SamplingParams, StopRules
from domain.scheduling import StepLimits
from domain.stream import Admitted, Failed, Finished, PrefillProgress, StreamItem, TextDelta
from tests.support.caches import prefix_cache
from tests.support.patience import PATIENCE_S
from tests.support.recording import RecordingEvents, RecordingSink

MODEL = ModelId("fake-attention")
WAIT_S = PATIENCE_S


class Bench:
    """An engine loop over one toy model, with everything recorded."""

    def __init__(self, options: FakeOptions, limits: StepLimits, max_queue: int = 100) -> None:
        self.engine = FakeEngine(default=options)
        self.sink = RecordingSink()
        self.events = RecordingEvents()
        self.loop = EngineLoop(
            lambda: self.engine, self.sink, self.events, FakeClock(tick_ns=1000), prefix_cache(), limits, max_queue
        )
        self.loop.start()
        source = FakeModels().find(MODEL)
        assert source is not None
        self.loop.load(source).result(WAIT_S)

    def submit(self, id: str, text: str, max_tokens: int = 8, sampling: SamplingParams | None = None) -> None:
        rules = StopRules(max_tokens=max_tokens, ignore_eos=True)
        sampling = sampling or SamplingParams(temperature=0)
        request = GenerationRequest(RequestId(id), MODEL, TextPrompt(text), sampling, rules)
        tokenizer = FakeTokenizer()
        prompt = tokenizer.encode(text)
        self.loop.reserve()
        seed = sampling.seed or 7
        self.loop.submit(
            Submission(request, prompt, max_tokens, seed, tokenizer.detokenizer(), MODEL, tokenizer.eos_token_ids)
        )

    def items(self, id: str) -> list[StreamItem]:
        return self.sink.wait_for_end(RequestId(id), WAIT_S)

    def tokens(self, id: str) -> list[int]:
        return [token for item in self.items(id) if isinstance(item, TextDelta) for token in item.token_ids]


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def build(options: FakeOptions | None = None, limits: StepLimits | None = None, max_queue: int = 100) -> Bench:
        benches.append(Bench(options or FakeOptions(), limits or StepLimits(8, 64, 32), max_queue))
        return benches[-1]

    yield build
    for bench in benches:
        assert bench.loop.stop(WAIT_S)
        assert bench.engine.is_closed


def test_no_token_that_would_end_the_answer_comes_before_min_tokens(make: Callable[..., Bench]) -> None:
    """Also one that only the tokenizer knows as an end."""
    tokenizer = FakeTokenizer()
    (end,) = tokenizer.eos_token_ids
    bench = make(FakeOptions(eos_id=65, reply=lambda _prompt: [end] * 20))
    request = GenerationRequest(
        RequestId("a"), MODEL, TextPrompt("x"), SamplingParams(temperature=0), StopRules(max_tokens=9, min_tokens=4)
    )
    bench.loop.reserve()
    ends = frozenset({65, end})
    bench.loop.submit(Submission(request, tokenizer.encode("x"), 9, 7, tokenizer.detokenizer(), MODEL, ends))
    tokens = bench.tokens("a")
    assert not ends & set(tokens[:4])
    assert tokens[4:] == [end]


def test_a_stream_is_admitted_prefilled_and_decoded_in_order(make: Callable[..., Bench]) -> None:
    bench = make()
    bench.submit("a", "x" * 150, max_tokens=5)
    items = bench.items("a")
    assert isinstance(items[0], Admitted)
    progress = [item.num_done for item in items if isinstance(item, PrefillProgress)]
    assert progress == [32, 64, 96, 128, len(FakeTokenizer().encode("x" * 150).token_ids)]
    end = items[-1]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.LENGTH
    assert end.usage.completion_tokens == 5 == len(bench.tokens("a"))
    assert end.usage.reused_tokens == 0


def test_the_answer_does_not_depend_on_the_company(make: Callable[..., Bench]) -> None:
    alone = make(limits=StepLimits(1, 64, 32))
    crowded = make(limits=StepLimits(8, 64, 32))
    sampling = SamplingParams(temperature=1.0, seed=3)
    texts = [f"prompt number {index} " * (index + 1) for index in range(12)]
    for bench in (alone, crowded):
        for index, text in enumerate(texts):
            bench.submit(str(index), text, max_tokens=4 + index, sampling=sampling)
    for index in range(len(texts)):
        assert alone.tokens(str(index)) == crowded.tokens(str(index))


class Gate:
    """Stops the compute thread before one operation until released."""

    def __init__(self, operation: str, id: int, call: int = 0) -> None:
        self.at = (operation, SequenceId(id), call)
        self.reached = threading.Event()
        self.release = threading.Event()

    def __call__(self, operation: str, id: SequenceId | None, call: int) -> None:
        if (operation, id, call) == self.at:
            self.reached.set()
            assert self.release.wait(WAIT_S)


@pytest.mark.parametrize(("operation", "call"), [("prefill", 1), ("decode", 3)])
def test_a_cancelled_sequence_ends_within_one_step(make: Callable[..., Bench], operation: str, call: int) -> None:
    gate = Gate(operation, 0, call)
    bench = make(FakeOptions(hook=gate), StepLimits(8, 32, 32))
    bench.submit("a", "y" * 200, max_tokens=1000)
    assert gate.reached.wait(WAIT_S)
    bench.loop.cancel(RequestId("a"))
    bench.submit("b", "next", max_tokens=3)
    gate.release.set()
    end = bench.items("a")[-1]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED
    assert len(bench.tokens("a")) <= call + 1
    assert len(bench.tokens("b")) == 3


def test_a_queued_request_can_be_cancelled_and_gives_its_place_back(make: Callable[..., Bench]) -> None:
    gate = Gate("decode", 0, 1)
    bench = make(FakeOptions(hook=gate), StepLimits(1, 32, 32), max_queue=2)
    bench.submit("a", "first", max_tokens=50)
    assert gate.reached.wait(WAIT_S)
    bench.submit("b", "second")
    bench.submit("c", "third")
    with pytest.raises(QueueFull):
        bench.loop.reserve()
    bench.loop.cancel(RequestId("b"))
    gate.release.set()
    end = bench.items("b")[-1]
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED
    assert bench.tokens("b") == []
    assert len(bench.tokens("c")) == 8
    assert bench.loop.status().num_waiting == 0


class FailAt:
    """Raises for one sequence at one call of one operation."""

    def __init__(self, operation: str, id: int, error: Exception, call: int = 0) -> None:
        self.at = (operation, SequenceId(id), call)
        self.error = error

    def __call__(self, operation: str, id: SequenceId | None, call: int) -> None:
        if (operation, id, call) == self.at:
            raise self.error


@pytest.mark.parametrize("operation", ["prefill", "start_decode", "decode"])
def test_one_failure_is_one_requests_failure(make: Callable[..., Bench], operation: str) -> None:
    bench = make(FakeOptions(hook=FailAt(operation, 1, ComputeFailed("planted"))))
    for id in "abc":
        bench.submit(id, id * 50)
    end = bench.items("b")[-1]
    assert isinstance(end, Failed)
    assert end.error.message == "planted"
    assert len(bench.tokens("a")) == len(bench.tokens("c")) == 8
    assert bench.engine.loaded[0].open_ids() == frozenset()


def test_an_unexpected_exception_is_contained_and_reported(make: Callable[..., Bench]) -> None:
    bench = make(FakeOptions(hook=FailAt("start_decode", 0, ValueError("a defect"))))
    bench.submit("a", "prompt")
    end = bench.items("a")[-1]
    assert isinstance(end, Failed)
    assert end.error.code == "compute_failed"
    assert [fault.message for fault in bench.events.of("FaultObserved")] == ["ValueError: a defect"]
    bench.submit("b", "prompt")
    assert len(bench.tokens("b")) == 8


def test_stopping_ends_everything_with_an_answer(make: Callable[..., Bench]) -> None:
    gate = Gate("decode", 0, 2)
    bench = make(FakeOptions(hook=gate), StepLimits(1, 32, 32))
    bench.submit("a", "running", max_tokens=500)
    assert gate.reached.wait(WAIT_S)
    bench.submit("b", "waiting")
    stopper = threading.Thread(target=bench.loop.stop)
    stopper.start()
    gate.release.set()
    stopper.join(WAIT_S)
    for id in "ab":
        end = bench.items(id)[-1]
        assert isinstance(end, Failed)
        assert isinstance(end.error, ServerUnavailable)
    with pytest.raises(ServerUnavailable):
        bench.loop.reserve()
    assert not bench.loop.status().is_alive


def test_an_engine_that_cannot_start_refuses_instead_of_hanging() -> None:
    def broken() -> FakeEngine:
        raise RuntimeError("no device")

    loop = EngineLoop(broken, RecordingSink(), RecordingEvents(), FakeClock(), prefix_cache(), StepLimits(1, 32, 32), 4)
    loop.start()
    source = FakeModels().find(MODEL)
    assert source is not None
    with pytest.raises(DomainError, match="no device"):
        loop.load(source).result(WAIT_S)
    assert loop.stop(WAIT_S)
    with pytest.raises(ServerUnavailable, match="no device"):
        loop.reserve()


def test_unloading_a_model_fails_what_it_still_serves(make: Callable[..., Bench]) -> None:
    gate = Gate("decode", 0, 1)
    bench = make(FakeOptions(hook=gate))
    bench.submit("a", "text", max_tokens=100)
    assert gate.reached.wait(WAIT_S)
    unloaded = bench.loop.unload(MODEL)
    gate.release.set()
    unloaded.result(WAIT_S)
    assert isinstance(bench.items("a")[-1], Failed)
    bench.submit("b", "text")
    assert isinstance(bench.items("b")[-1], Failed)
    assert bench.engine.loaded == []


def test_loading_and_unloading_tell_what_the_backend_holds(make: Callable[..., Bench]) -> None:
    bench = make(FakeOptions(weight_bytes=700))
    bench.loop.unload(MODEL).result(WAIT_S)
    (loaded,), (unloaded,) = bench.events.of("ModelLoaded"), bench.events.of("ModelUnloaded")
    assert isinstance(loaded, ModelLoaded)
    assert isinstance(unloaded, ModelUnloaded)
    assert (loaded.active_bytes, unloaded.active_bytes) == (700, 0)
