"""The engine loop on the toy engine: ends of answers, cancelling, unloading, an engine that cannot start."""

import threading
from collections.abc import Callable, Iterator

import pytest

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.events import ModelLoaded, ModelUnloaded, StepCompleted
from application.ports.engine import Ended, EngineItem
from domain.errors import DomainError, ServerUnavailable
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions
from domain.request.request import FinishReason
from domain.request.sampling import SamplingParams
from domain.scheduling.step_values import StepLimits
from tests.support.engines.drafters import CHEAP, KnowingDrafter, greedy_drafter
from tests.support.engines.sync_engine import GREEDY, Inbox, SyncEngine, submission
from tests.support.patience import PATIENCE_S
from tests.support.stores.caches import prefix_cache

MODEL = ModelId("fake-attention")
WAIT_S = PATIENCE_S


class Bench:
    """An engine loop over one toy model, with everything recorded."""

    def __init__(self, options: FakeOptions, limits: StepLimits) -> None:
        self.engine = FakeEngine(default=options)
        self.inbox = Inbox()
        self.events = self.inbox.events
        self.loop = SyncEngine(
            lambda: self.engine,
            prefix_cache=prefix_cache(),
            limits=limits,
            clock=FakeClock(tick_ns=1000),
            inbox=self.inbox,
        )
        self.loop.start()
        source = FakeModels().find(MODEL)
        assert source is not None
        self.loop.load(source, LoadOptions()).result(WAIT_S)

    def submit(
        self,
        id: str,
        text: str,
        max_tokens: int = 8,
        sampling: SamplingParams | None = None,
        *,
        ignore_eos: bool = True,
    ) -> None:
        sampling = sampling or GREEDY
        tokenizer = FakeTokenizer()
        prompt, seed, eos = tokenizer.encode(text), sampling.seed or 7, tokenizer.eos_token_ids
        asked = {"sampling": sampling, "seed": seed, "eos_token_ids": eos, "ignore_eos": ignore_eos}
        self.loop.submit(submission(id, MODEL, prompt, max_tokens, **asked))

    def items(self, id: str) -> list[EngineItem]:
        return self.inbox.wait_for_end(id, WAIT_S)

    def end(self, id: str) -> Ended:
        end = self.items(id)[-1]
        assert isinstance(end, Ended)
        return end

    def tokens(self, id: str) -> list[int]:
        return self.loop.tokens(id, WAIT_S)

    def steps(self) -> list[StepCompleted]:
        return [event for event in self.events.events if isinstance(event, StepCompleted)]


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def build(options: FakeOptions | None = None, limits: StepLimits | None = None) -> Bench:
        benches.append(Bench(options or FakeOptions(), limits or StepLimits(8, 64, 32)))
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
    ends = frozenset({65, end})
    asked = submission("a", MODEL, tokenizer.encode("x"), 9, min_tokens=4, eos_token_ids=ends, ignore_eos=False)
    bench.loop.submit(asked)
    tokens = bench.tokens("a")
    assert not ends & set(tokens[:4])
    assert tokens[4:] == [end]


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 30])
def test_several_tokens_a_step_make_the_same_answer(make: Callable[..., Bench], max_tokens: int) -> None:
    """And no more: no draft is longer than the answer has room for."""
    one, several = make(), make(greedy_drafter(FakeOptions()))
    for bench in (one, several):
        bench.submit("a", "several", max_tokens)
    expected, items = one.tokens("a"), several.items("a")
    assert several.tokens("a") == expected
    end = items[-1]
    assert isinstance(end, Ended)
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.LENGTH, max_tokens)
    assert sum(event.num_decode_tokens for event in several.steps()) == max_tokens
    if max_tokens == 30:
        assert sum(event.num_decode_tokens > 0 for event in several.steps()) < 20


def test_an_answer_ends_inside_a_draft(make: Callable[..., Bench]) -> None:
    """Whichever token of it that is: the drafter knows what would follow the end."""
    tokenizer = FakeTokenizer()
    (eos,) = tokenizer.eos_token_ids
    for length in range(1, 12):
        answer = [65 + index for index in range(length)]
        script = [*answer, eos, *[66] * 50]
        drafter = KnowingDrafter("right", 0)
        drafter.learn(tokenizer.encode("x").token_ids, script)
        bench = make(FakeOptions(reply=lambda _prompt, script=script: script, drafter=drafter, width_costs=CHEAP))
        bench.submit("a", "x", 40, ignore_eos=False)
        assert bench.tokens("a") == [*answer, eos]
        end = bench.items("a")[-1]
        assert isinstance(end, Ended)
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, length + 1)
        assert sum(event.num_decode_tokens for event in bench.steps()) == length + 1


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
    bench.loop.cancel("a")
    bench.submit("b", "next", max_tokens=3)
    gate.release.set()
    assert bench.end("a").reason is FinishReason.CANCELLED
    assert len(bench.tokens("a")) <= call + 1
    assert len(bench.tokens("b")) == 3


def test_an_engine_that_cannot_start_refuses_instead_of_hanging() -> None:
    def broken() -> FakeEngine:
        raise RuntimeError("no device")

    loop = SyncEngine(
        broken, prefix_cache=prefix_cache(), limits=StepLimits(1, 32, 32), clock=FakeClock(), inbox=Inbox()
    )
    loop.start()
    source = FakeModels().find(MODEL)
    assert source is not None
    with pytest.raises(DomainError, match="no device"):
        loop.load(source, LoadOptions()).result(WAIT_S)
    assert loop.stop(WAIT_S)
    with pytest.raises(ServerUnavailable, match="no device"):
        loop.submit(submission("late", MODEL, FakeTokenizer().encode("x"), 1))


def test_loading_and_unloading_report_the_memory_of_the_backend(make: Callable[..., Bench]) -> None:
    bench = make(FakeOptions(weight_bytes=700))
    bench.loop.unload(MODEL).result(WAIT_S)
    (loaded,), (unloaded,) = bench.events.of("ModelLoaded"), bench.events.of("ModelUnloaded")
    assert isinstance(loaded, ModelLoaded)
    assert isinstance(unloaded, ModelUnloaded)
    assert (loaded.active_bytes, unloaded.active_bytes) == (700, 0)
