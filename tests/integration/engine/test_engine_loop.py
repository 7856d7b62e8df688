"""The engine loop on the toy engine: ends of answers, unloading, an engine that cannot start."""

import pytest

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.events import ModelLoaded, ModelUnloaded, StepCompleted
from domain.errors import DomainError, ServerUnavailable
from domain.ids import ModelId
from domain.models.model_card import LoadOptions
from domain.request.request import FinishReason
from domain.scheduling.step_values import StepLimits
from tests.support.engines.drafters import CHEAP, KnowingDrafter, greedy_drafter
from tests.support.engines.stepped_engine import MODEL, SteppedEngine
from tests.support.engines.sync_engine import Inbox, SyncEngine, submission
from tests.support.patience import PATIENCE_S
from tests.support.stores.caches import prefix_cache

PROMPT = b"a prompt of several tokens"
(END,) = FakeTokenizer().eos_token_ids


def test_no_token_that_would_end_the_answer_comes_before_min_tokens() -> None:
    """Also one that only the tokenizer knows as an end."""
    engine = SteppedEngine(FakeOptions(eos_id=65, reply=lambda _prompt: [END] * 20))
    ends = frozenset({65, END})
    engine.submit("a", PROMPT, 9, min_tokens=4, eos_token_ids=ends, ignore_eos=False)
    engine.run()
    tokens = engine.tokens("a")
    assert not ends & set(tokens[:4])
    assert tokens[4:] == [END]


@pytest.mark.parametrize("max_tokens", [1, 2, 7, 30])
def test_several_tokens_a_step_make_the_same_answer(max_tokens: int) -> None:
    """And no more: no draft is longer than the answer has room for."""
    one, several = SteppedEngine(FakeOptions()), SteppedEngine(greedy_drafter(FakeOptions()))
    for engine in (one, several):
        engine.submit("a", PROMPT, max_tokens)
        engine.run()
    assert several.tokens("a") == one.tokens("a")
    end = several.end("a")
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.LENGTH, max_tokens)
    decoded = [event.num_decode_tokens for event in several.events(StepCompleted)]
    assert sum(decoded) == max_tokens
    if max_tokens == 30:
        assert sum(number > 0 for number in decoded) < 20


def test_an_answer_ends_inside_a_draft() -> None:
    """Whichever token of it that is: the drafter knows what would follow the end."""
    for length in range(1, 12):
        answer = [65 + index for index in range(length)]
        script = [*answer, END, *[66] * 50]
        drafter = KnowingDrafter("right", 0)
        drafter.learn(PROMPT, script)
        engine = SteppedEngine(
            FakeOptions(reply=lambda _prompt, script=script: script, drafter=drafter, width_costs=CHEAP)
        )
        engine.submit("a", PROMPT, 40, eos_token_ids=frozenset({END}), ignore_eos=False)
        engine.run()
        assert engine.tokens("a") == [*answer, END]
        end = engine.end("a")
        assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, length + 1)
        assert sum(event.num_decode_tokens for event in engine.events(StepCompleted)) == length + 1


def test_an_engine_that_cannot_start_refuses_instead_of_hanging() -> None:
    def broken() -> FakeEngine:
        raise RuntimeError("no device")

    loop = SyncEngine(
        broken, prefix_cache=prefix_cache(), limits=StepLimits(1, 32, 32), clock=FakeClock(), inbox=Inbox()
    )
    loop.start()
    source = FakeModels().find(ModelId("fake-attention"))
    assert source is not None
    with pytest.raises(DomainError, match="no device"):
        loop.load(source, LoadOptions()).result(PATIENCE_S)
    assert loop.stop(PATIENCE_S)
    with pytest.raises(ServerUnavailable, match="no device"):
        loop.submit(submission("late", source.id, FakeTokenizer().encode("x"), 1))


def test_loading_and_unloading_report_the_memory_of_the_backend() -> None:
    engine = SteppedEngine(FakeOptions(weight_bytes=700))
    engine.loop.unload(MODEL)
    engine.run()
    events = engine.events(ModelLoaded, ModelUnloaded)
    assert [(type(event), event.active_bytes) for event in events] == [(ModelLoaded, 700), (ModelUnloaded, 0)]
