"""Speculation in the engine on the toy model: the same tokens in fewer steps, counted, and off where it should be."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.environment import FakeClock
from adapters.fake.options import LAYOUTS, FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.events import StepCompleted
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.models.model_card import LoadOptions
from domain.request.request import Usage
from domain.request.sampling import SamplingParams
from domain.scheduling.step_values import StepLimits
from domain.speculation.drafter import SpeculationMode
from domain.speculation.gain import WIDTHS, WidthCosts
from tests.support.engines.drafters import CHEAP
from tests.support.engines.sync_engine import GREEDY, Inbox, SyncEngine, submission, usage_of
from tests.support.patience import PATIENCE_S
from tests.support.stores.cache_driver import prefix_cache

MODEL = ModelId("fake-attention")
DEAR = WidthCosts.measured([[10.0 * width for width in WIDTHS]] * 2)
REPEATING = "the cat sat on the mat. " * 6
"""A scripted answer that lookup drafts from."""


class Bench:
    """An engine over one toy model."""

    def __init__(self, options: FakeOptions, mode: SpeculationMode) -> None:
        self.inbox, engine = Inbox(), FakeEngine(default=options)
        self.loop = SyncEngine(
            lambda: engine,
            prefix_cache=prefix_cache(),
            limits=StepLimits(8, 64, 32),
            clock=FakeClock(tick_ns=1000),
            inbox=self.inbox,
        )
        self.loop.start()
        source = FakeModels().find(MODEL)
        assert source is not None
        self.loop.load(source, LoadOptions(speculation=mode)).result(PATIENCE_S)

    def submit(self, id: str, text: str, sampling: SamplingParams = GREEDY, **asked: Any) -> None:
        prompt = FakeTokenizer().encode(text)
        settings = {"sampling": sampling, "seed": 7, "eos_token_ids": frozenset({258}), **asked}
        self.loop.submit(submission(id, MODEL, prompt, 100, **settings))

    def usage(self, id: str) -> Usage:
        return usage_of(self.inbox.wait_for_end(id, PATIENCE_S))

    def tokens(self, id: str) -> list[int]:
        return self.loop.tokens(id, PATIENCE_S)

    @property
    def num_steps(self) -> int:
        events = self.inbox.events.events
        return sum(isinstance(event, StepCompleted) and event.num_decode_tokens > 0 for event in events)


Make = Callable[..., Bench]


@pytest.fixture
def make() -> Iterator[Make]:
    benches: list[Bench] = []

    def build(options: FakeOptions, mode: SpeculationMode = SpeculationMode.AUTO) -> Bench:
        benches.append(Bench(options, mode))
        return benches[-1]

    yield build
    for bench in benches:
        assert bench.loop.stop(PATIENCE_S)


def _repeating(**changes: Any) -> FakeOptions:
    return replace(FakeOptions(reply=lambda _prompt: tuple(REPEATING.encode()), width_costs=CHEAP), **changes)


def test_lookup_gives_the_same_tokens_in_fewer_steps(make: Make) -> None:
    plain, drafting = make(_repeating(width_costs=None)), make(_repeating())
    for bench in (plain, drafting):
        bench.submit("a", "say it")
    assert drafting.tokens("a") == plain.tokens("a")
    assert drafting.num_steps < plain.num_steps / 2
    usage = drafting.usage("a")
    assert usage.proposed.keys() == {"ngram"}
    assert usage.num_accepted > 50
    assert usage.num_accepted + drafting.num_steps == 100
    assert not plain.usage("a").proposed


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_own_drafter_changes_no_token(make: Make, layout: str) -> None:
    """It repeats the last token: sometimes right, mostly wrong."""
    options = FakeOptions(LAYOUTS[layout], eos_every=0, alphabet=(65, 66))
    plain = make(options)
    drafting = make(replace(options, width_costs=CHEAP, drafter=lambda text: [text[-1]] * 8))
    drawn = SamplingParams(temperature=1.0)
    for bench in (plain, drafting):
        bench.submit("a", "one", drawn)
        bench.submit("b", "another", drawn)
    assert [drafting.tokens(id) for id in "ab"] == [plain.tokens(id) for id in "ab"]
    assert sum(drafting.usage(id).proposed.get("mtp", 0) for id in "ab") > 0
    usages = [drafting.usage(id) for id in "ab"]
    assert sum(usage.num_accepted for usage in usages) < sum(usage.num_proposed for usage in usages)


def test_a_predicted_text_is_drafted_from(make: Make) -> None:
    story = "no word of this is repeated, but the client knew most things"
    bench = make(FakeOptions(reply=lambda _prompt: tuple(story.encode()), width_costs=CHEAP))
    bench.submit("a", "tell", predicted_ids=IdRow(story.encode()))
    assert bytes(bench.tokens("a")[: len(story)]).decode() == story
    assert bench.usage("a").accepted["prediction"] > len(story) // 2


@pytest.mark.parametrize(
    ("costs", "mode", "speculates"),
    [
        (None, SpeculationMode.AUTO, True),
        (DEAR, SpeculationMode.AUTO, True),
        (CHEAP, SpeculationMode.AUTO, False),
        (CHEAP, SpeculationMode.OFF, True),
        (CHEAP, SpeculationMode.MTP, True),
    ],
    ids=["unmeasured", "too dear", "the request says no", "off", "no head"],
)
def test_nothing_is_drafted(make: Make, costs: WidthCosts | None, mode: SpeculationMode, speculates: bool) -> None:
    bench = make(_repeating(width_costs=costs), mode)
    bench.submit("a", "say it", speculates=speculates)
    assert bench.usage("a").proposed == {}
    assert bench.num_steps == 100


def test_no_token_is_drafted_beyond_the_end_of_the_answer(make: Make) -> None:
    """Whichever token of a draft the answer's limit falls on."""
    for limit in range(30, 48):
        bench = make(_repeating())
        prompt = FakeTokenizer().encode("say it")
        bench.loop.submit(submission("a", MODEL, prompt, limit, sampling=GREEDY, seed=7))
        assert bytes(bench.tokens("a")).decode() == REPEATING[:limit]
        assert bench.usage("a").completion_tokens == limit
