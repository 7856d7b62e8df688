"""A preempted stream only pauses, and one whose engine was lost continues in another engine.

Its tokens, its usage and its end are those of an undisturbed one, and nothing is reported twice.
"""

from dataclasses import replace
from typing import Any

import pytest

from adapters.fake.options import EOS_ID, LAYOUTS, FakeOptions
from application.events import DecodeStarted, FirstToken, PrefillChunkComputed, RequestAdmitted, RequestPreempted
from application.ports.engine import Ended, EngineItem, Tokens
from application.services.text_side.supervision.open_work import Work
from domain.errors import MemoryBusy, ServerUnavailable
from domain.ids import RequestId
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.grammar import choice_grammar
from domain.request.reasoning_budget import ReasoningBudget, ReasoningMarks
from domain.request.request import FinishReason, choice_id
from domain.request.sampling import SamplingParams
from domain.request.stream import Admitted, PrefillProgress, PromptLogprobs
from tests.support.engines.drafters import greedy_drafter
from tests.support.engines.stepped_engine import MODEL, SteppedEngine
from tests.support.engines.sync_engine import submission, tokens_of, usage_of

PROMPTS = [tuple(range(32 + start, 32 + start + length)) for start, length in ((0, 75), (3, 90), (9, 40))]
WORN = SamplingParams(
    temperature=1.0, repetition_penalty=1.4, presence_penalty=0.7, frequency_penalty=0.9, num_logprobs=2
)
ENDS = frozenset({EOS_ID})
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "worn": {"sampling": WORN, "seed": 9},
    "kept going": {"min_tokens": 9, "ignore_eos": False, "eos_token_ids": ENDS, "num_tokens": 40},
    "grammar": {
        "grammar": choice_grammar(["a long answer, and that was it", "a long way"], "choice"),
        "eos_token_ids": ENDS,
        "ignore_eos": False,
        "num_tokens": 60,
    },
    "reasoning": {"reasoning_budget": ReasoningBudget(5, ReasoningMarks((300,), (60, 61, 62), is_open=True))},
    "choices": {"num_choices": 3, "sampling": SamplingParams(temperature=1.0)},
    "scored": {"num_prompt_logprobs": 2},
}


ORDER = [Admitted, PromptLogprobs | PrefillProgress, Tokens, Ended]


def play(options: FakeOptions, asked: dict[str, Any], every: int, *, reuses: bool = True) -> SteppedEngine:
    """Preempts all but one sequence every `every` steps; 0: never."""
    engine = SteppedEngine(options, reuses=reuses)
    engine.guard.preempts = lambda step, active: bool(every) and step % every == 0 and len(active) > 1
    for index, prompt in enumerate(PROMPTS):
        engine.submit(str(index), prompt, **asked)
    engine.run()
    return engine


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("every", [2, 7])
def test_a_preempted_request_gives_the_same_answer(
    asked: dict[str, Any], runs_ahead: bool, drafts: bool, every: int
) -> None:
    options = FakeOptions(runs_ahead=runs_ahead, eos_every=6, vocab_size=400)
    calm, disturbed = play(options, asked, 0), play(greedy_drafter(options) if drafts else options, asked, every)
    assert disturbed.events(RequestPreempted)
    assert any(usage_of(disturbed.items(id)).proposed for id in ("0", "1", "2")) is drafts
    for id in ("0", "1", "2"):
        for choice in range(asked.get("num_choices", 1)):
            assert disturbed.tokens(id, choice) == calm.tokens(id, choice)
            usage, expected = disturbed.end(id, choice).usage, calm.end(id, choice).usage
            assert (usage.prompt_tokens, usage.completion_tokens) == (
                expected.prompt_tokens,
                expected.completion_tokens,
            )
            assert disturbed.end(id, choice).reason is calm.end(id, choice).reason
            check_items(disturbed, id, choice)
            assert scores(disturbed.items(id, choice)) == scores(calm.items(id, choice))


def check_items(engine: SteppedEngine, id: str, choice: int) -> None:
    """Asserts that the items come in order, and none twice."""
    items = engine.items(id, choice)
    assert sum(isinstance(item, Admitted) for item in items) == 1
    assert isinstance(items[0], Admitted)
    done = [item.num_done for item in items if isinstance(item, PrefillProgress)]
    assert done == sorted(set(done))
    assert sum(isinstance(item, Ended) for item in items) == 1
    places = [next(at for at, kind in enumerate(ORDER) if isinstance(item, kind)) for item in items]
    assert places == sorted(places)


def scores(items: list[EngineItem]) -> list[Any]:
    return [score for item in items if isinstance(item, PromptLogprobs) for score in item.scores]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("reuses", [True, False])
def test_every_layout_resumes_with_and_without_a_cache(layout: str, reuses: bool) -> None:
    options = greedy_drafter(FakeOptions(LAYOUTS[layout], runs_ahead=True, eos_every=0))
    calm, disturbed = (play(options, {"num_tokens": 50}, every, reuses=reuses) for every in (0, 5))
    assert disturbed.events(RequestPreempted)
    for id in ("0", "1", "2"):
        assert disturbed.tokens(id) == calm.tokens(id)


@pytest.mark.parametrize("layout", ["attention", "windowed", "hybrid", "everything"])
@pytest.mark.parametrize("runs_ahead", [False, True])
def test_captured_state_is_not_computed_again(layout: str, runs_ahead: bool) -> None:
    engine = SteppedEngine(FakeOptions(LAYOUTS[layout], runs_ahead=runs_ahead, eos_every=0))
    engine.guard.preempts = lambda step, _active: step in (15, 25)
    engine.submit("a", PROMPTS[0], 30)
    engine.run()
    resumed = [event for event in engine.events(PrefillChunkComputed) if event.is_resumed]
    assert len(engine.events(RequestPreempted)) == 2
    assert sum(event.end - event.start for event in resumed) <= 2 * (1 if runs_ahead else 2)


def preempted(num_steps: int = 12, **changes: Any) -> SteppedEngine:
    """Returns an engine with one preempted request that has output."""
    engine = SteppedEngine()
    engine.submit("a", PROMPTS[0], 30, **changes)
    engine.step(num_steps)
    assert engine.tokens("a")
    engine.guard.preempts = lambda _step, _active: True
    engine.guard.admits = False
    engine.step()
    engine.guard.preempts = lambda _step, _active: False
    assert not engine.model.open_ids(), "a preempted sequence holds nothing"
    status = engine.loop.status()
    assert (status.num_running, status.num_waiting) == (0, 1)
    return engine


def test_a_preempted_request_is_charged_for_its_output_as_prompt() -> None:
    """Its output is part of its prompt then, with the usual reserve for the answer."""
    engine = SteppedEngine()
    engine.guard.charges = lambda num_prompt, num_new: 1000 * num_prompt + num_new
    seen: list[int] = []
    engine.guard.preempts = lambda step, active: bool(seen.append(active[0].charge_bytes)) or step == 12
    engine.submit("a", PROMPTS[0], 30)
    engine.step(12)
    num_out = len(engine.tokens("a"))
    engine.run()
    assert num_out
    assert [seen[0], seen[-1]] == [75_030, 1000 * (75 + num_out) + 30 - num_out]


def test_a_preempted_request_can_be_cancelled() -> None:
    engine = preempted()
    engine.loop.cancel(RequestId("a"))
    engine.run()
    end = engine.end("a")
    assert end.reason is FinishReason.CANCELLED
    assert end.usage.completion_tokens == len(engine.tokens("a"))


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_a_stop_string_ends_a_preempted_request(num_steps: int) -> None:
    engine = preempted()
    engine.guard.admits = True
    engine.step(num_steps)
    engine.loop.cancel(RequestId("a"), reason=FinishReason.STOP, num_tokens=2)
    engine.run()
    end = engine.end("a")
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.STOP, 2)


def test_a_preempted_request_ends_with_its_model() -> None:
    engine = preempted()
    engine.loop.unload(MODEL)
    error = engine.end("a").error
    assert error is not None
    assert error.code == ServerUnavailable.code
    assert not engine.cache.tiers.open


def test_a_request_that_does_not_fit_alone_fails_with_memory_busy() -> None:
    engine = SteppedEngine()
    engine.guard.preempts = lambda _step, active: any(view.num_computed >= 80 for view in active)
    engine.submit("a", PROMPTS[0], 30)
    engine.run()
    error = engine.end("a").error
    assert error is not None
    assert error.code == MemoryBusy.code, "by the estimate it fits: a client that shortened its prompt would lose by it"
    assert "this request does not fit in memory" in error.message
    assert 3 <= len(engine.events(RequestPreempted)) <= 4


def test_choices_follow_the_next_one_when_the_first_is_preempted() -> None:
    engine = SteppedEngine()
    engine.submit("a", PROMPTS[1], 5, num_choices=3)
    engine.guard.preempts = lambda step, _active: step == 4
    engine.run()
    assert [event.id for event in engine.events(RequestPreempted)] == ["a"]
    computed = [event for event in engine.events(PrefillChunkComputed) if event.id != "a"]
    assert sum(event.end - event.start for event in computed) < len(PROMPTS[1])
    assert all(len(engine.tokens("a", choice)) == 5 for choice in range(3))


def test_a_failing_capture_costs_computing_it_again() -> None:
    def hook(operation: str, id: object, count: int) -> None:
        if operation == "capture_blocks" and count > 3:
            raise RuntimeError("planted")

    options = FakeOptions(eos_every=0)
    calm = play(options, {"num_tokens": 40}, 0)
    engine = SteppedEngine(replace(options, hook=hook))
    engine.guard.preempts = lambda step, _active: step == 11
    engine.submit("0", PROMPTS[0], 8)
    engine.run()
    assert engine.tokens("0") == calm.tokens("0")[:8]


# ---- engines that were lost ----------------------------------------------------------------------------------------


def items_so_far(engine: SteppedEngine, work: Work) -> list[tuple[int, EngineItem]]:
    """Returns all items of the engine so far, after `work` has taken them in."""
    found = [(choice, item) for batch in engine.batches for _, choice, item in batch.items]
    admitted = {event.id for event in engine.events(RequestAdmitted)}
    for choice in work.choices:
        if choice_id(RequestId("a"), choice) in admitted:
            work.left_queue(choice)
    for choice, item in found:
        work.received(choice, item)
    return found


RESUMED = {**ASKED, "nothing wanted": {"num_prompt_logprobs": 1, "num_tokens": 0}}


@pytest.mark.parametrize("asked", RESUMED.values(), ids=RESUMED)
@pytest.mark.parametrize("num_steps", [0, 1, 3, 5, 7, 11])
def test_a_choice_continues_in_another_engine(asked: dict[str, Any], num_steps: int) -> None:
    options = FakeOptions(eos_every=6, vocab_size=400)
    asked = {"num_tokens": 12, **asked}
    wanted = submission("a", MODEL, EncodedPrompt.of_text(PROMPTS[1]), **asked)
    calm, first, second = (SteppedEngine(options) for _ in range(3))
    calm.loop.add(wanted)
    calm.run()
    first.loop.add(wanted)
    for _ in range(num_steps):
        if first.loop.is_busy:
            first.step()
    work = Work(wanted)
    items = items_so_far(first, work)
    if work.choices:
        second.loop.add(work.resumed())
        second.run()
        items += items_so_far(second, Work(wanted))
    for choice in range(wanted.num_choices):
        mine = [item for of, item in items if of == choice]
        theirs = calm.items("a", choice)
        assert tokens_of(mine) == tokens_of(theirs)
        assert scores(mine) == scores(theirs)
        assert [type(item) for item in mine if not isinstance(item, Tokens | PromptLogprobs)] == [
            type(item) for item in theirs if not isinstance(item, Tokens | PromptLogprobs)
        ]
        end, expected = mine[-1], theirs[-1]
        assert isinstance(end, Ended)
        assert isinstance(expected, Ended)
        assert (end.reason, end.usage.completion_tokens) == (expected.reason, expected.usage.completion_tokens)
    num_left = sum(batch.num_left_queue for engine in (first, second) for batch in engine.batches)
    assert num_left == wanted.num_choices
    for choice in range(wanted.num_choices):
        firsts = [event for engine in (first, second) for event in engine.events(FirstToken)]
        assert sum(event.id == choice_id(RequestId("a"), choice) for event in firsts) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_continues_in_another_engine(layout: str) -> None:
    options = greedy_drafter(FakeOptions(LAYOUTS[layout], runs_ahead=True, eos_every=0))
    wanted = submission("a", MODEL, EncodedPrompt.of_text(PROMPTS[1]), 30)
    calm, first, second = (SteppedEngine(options) for _ in range(3))
    for engine in (calm, first):
        engine.loop.add(wanted)
    calm.run()
    while not first.events(DecodeStarted):
        first.step()
    first.step(3)
    work = Work(wanted)
    items = items_so_far(first, work)
    assert tokens_of([item for _, item in items])
    second.loop.add(work.resumed())
    second.run()
    assert tokens_of([item for _, item in items]) + second.tokens("a") == calm.tokens("a")
