"""Pooled requests in the engine loop: prompts are reused, rows are computed in batches, and values are those of whole
texts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.fake import ATTENTION, HYBRID, FakeModel, FakeOptions
from application.events import PrefillChunkComputed, PrefixMatched
from application.ports.engine import Ended, ResumedChoice
from domain.errors import ComputeFailed
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId, SequenceId
from domain.memory.shape import MemoryShape, StepCost
from domain.models.capability import Pooling
from domain.models.model_card import ModelSource
from domain.models.state_layout import StateLayout
from domain.prefix.explanation import StopReason
from domain.request.request import FinishReason
from domain.request.stream import Admitted, Pooled
from domain.scheduling.memory_demand import demand_of
from domain.scheduling.step_values import WaitingView
from tests.support.engines.stepped_engine import GRID, SteppedEngine

EMBED = Pooling()
PROMPT = range(100, 175)
ROWS = tuple(IdRow(range(start, start + length)) for start, length in ((90, 20), (1, 9), (30, 9), (50, 3), (200, 1)))


def engine(layout: StateLayout = ATTENTION, live_bytes: int = 0, **options: Any) -> SteppedEngine:
    return SteppedEngine(FakeOptions(layout=layout, eos_every=0, **options), live_bytes=live_bytes)


def submit(engine: SteppedEngine, id: str, prompt: Sequence[int] = PROMPT, **changes: Any) -> None:
    rows = changes.setdefault("rows", ROWS)
    engine.submit(id, [*prompt, rows[0][0]], 0, **{"pooling": EMBED, **changes})


def passes(engine: SteppedEngine, id: str) -> list[int]:
    """Returns the number of rows of each pass."""
    return [len(item.values) for item in engine.items(id) if isinstance(item, Pooled)]


def values(engine: SteppedEngine, id: str) -> list[bytes]:
    return [value for item in engine.items(id) if isinstance(item, Pooled) for value in item.values]


def alone(layout: StateLayout, prompt: Sequence[int] = PROMPT) -> list[bytes]:
    """Returns the values of each whole text, computed by itself."""
    model = FakeModel(ModelSource(ModelId("plain"), "nowhere"), FakeOptions(layout=layout))
    found = list[bytes]()
    for number, row in enumerate(ROWS):
        id, text = SequenceId(number), [*prompt, *row]
        model.open(id)
        if text[:-1]:
            model.prefill(id, text[:-1])
        found += model.pool(id, [text[-1:]], EMBED)
    return found


@pytest.mark.parametrize("layout", [ATTENTION, HYBRID])
@pytest.mark.parametrize("prompt", [PROMPT, range(100, 164), range(0)], ids=["off grid", "on grid", "empty"])
def test_rows_have_the_values_of_their_whole_texts(layout: StateLayout, prompt: Sequence[int]) -> None:
    pooled = engine(layout)
    submit(pooled, "texts", prompt)
    pooled.run()
    assert values(pooled, "texts") == alone(layout, prompt)
    items, end = pooled.items("texts"), pooled.end("texts")
    assert isinstance(items[0], Admitted)
    assert items[0].explanation.num_prompt == len(prompt) + 42
    assert (end.reason, end.error) == (FinishReason.STOP, None)
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.reused_tokens) == (len(prompt) + 42, 0, 0)


def test_the_states_of_a_pass_have_at_most_the_budget_in_tokens_and_one_row_at_least() -> None:
    pooled = engine()
    submit(pooled, "texts", range(0), rows=(IdRow(range(180, 220)), *ROWS))
    pooled.run()
    assert passes(pooled, "texts") == [1, 1, 3, 1]
    chunks = [(event.start, event.end) for event in pooled.events(PrefillChunkComputed)]
    assert chunks == [(0, 40), (40, 60), (60, 81), (81, 82)]
    submit(pooled, "behind a prompt", range(20))
    pooled.run()
    assert passes(pooled, "behind a prompt") == [1] * 5


@pytest.mark.parametrize("layout", [ATTENTION, HYBRID])
def test_a_second_request_with_the_same_prompt_computes_none_of_it(layout: StateLayout) -> None:
    pooled = engine(layout)
    for id in ("first", "second", "third"):
        submit(pooled, id)
        pooled.run()
        assert values(pooled, id) == alone(layout)
    reused = [pooled.end(id).usage.reused_tokens for id in ("first", "second", "third")]
    assert reused == [0, len(PROMPT), len(PROMPT)]


def test_texts_without_a_common_beginning_are_no_full_hit() -> None:
    pooled = engine()
    submit(pooled, "texts", range(0))
    pooled.run()
    assert [event.reason for event in pooled.events(PrefixMatched)] == [StopReason.NEVER_SEEN.value]


def test_a_state_is_left_for_the_next_request_although_nothing_was_computed_on_it() -> None:
    pooled = engine(live_bytes=1 << 20)
    for id in ("first", "second", "third"):
        submit(pooled, id)
        pooled.run()
    assert [pooled.end(id).usage.reused.get("live", 0) for id in ("second", "third")] == [len(PROMPT)] * 2


def test_requests_that_arrive_together_compute_their_prompt_once() -> None:
    pooled = engine()
    for id in ("a", "b", "c"):
        submit(pooled, id)
    pooled.submit("chat", [*PROMPT, 7, 8], 3)
    pooled.run()
    chunks = [event for event in pooled.events(PrefillChunkComputed) if event.end <= len(PROMPT)]
    assert sum(chunk.end - chunk.start for chunk in chunks) == len(PROMPT)
    assert pooled.end("chat").usage.reused_tokens == len(PROMPT)
    assert values(pooled, "a") == values(pooled, "b") == values(pooled, "c") == alone(ATTENTION)


def test_a_preempted_request_goes_on_with_the_rows_that_were_not_reported() -> None:
    pooled = engine()
    pooled.guard.preempts = lambda _step, active: len(passes(pooled, "texts")) == 2 and not active[0].num_preempted
    submit(pooled, "texts")
    pooled.run()
    assert values(pooled, "texts") == alone(ATTENTION)
    again = [event for event in pooled.events(PrefillChunkComputed) if event.is_resumed]
    assert again == []  # its prompt was restored


def test_a_request_that_is_preempted_alone_after_each_pass_comes_to_its_end() -> None:
    pooled, done = engine(), list[int]()
    pooled.guard.preempts = lambda _step, _active: len(passes(pooled, "texts")) > len(done) and not done.append(1)
    submit(pooled, "texts", range(40))
    pooled.run()
    assert (len(done), values(pooled, "texts")) == (4, alone(ATTENTION, range(40)))


def test_what_another_engine_reported_is_not_computed_again() -> None:
    pooled = engine()
    resumed = ResumedChoice(has_left_queue=True, num_prompt_done=len(PROMPT) + 29)
    submit(pooled, "texts", resumed=(resumed,))
    pooled.run()
    assert values(pooled, "texts") == alone(ATTENTION)[2:]
    submit(pooled, "all", resumed=(replace(resumed, num_prompt_done=len(PROMPT) + 42),))
    pooled.step()
    assert [type(item) for item in pooled.items("all")] == [Ended]
    assert pooled.end("all").usage.prompt_tokens == len(PROMPT) + 42


def test_a_request_is_cancelled_between_two_batches() -> None:
    pooled = engine()
    submit(pooled, "texts")
    while not values(pooled, "texts"):
        pooled.step()
    pooled.loop.cancel(RequestId("texts"))
    assert pooled.end("texts").reason is FinishReason.CANCELLED
    pooled.run()


LONG = tuple(IdRow([start] * 100) for start in (1, 2, 3))
"""Rows of more tokens than a step prefills."""


def test_a_model_without_state_computes_rows_of_any_length_each_in_one_pass() -> None:
    pooled = engine(StateLayout(()))
    submit(pooled, "texts", range(0), rows=(*LONG, IdRow([4])))
    pooled.run()
    assert passes(pooled, "texts") == [1, 1, 1, 1]
    assert isinstance(admitted := pooled.items("texts")[0], Admitted)
    assert (admitted.explanation.reason, admitted.explanation.note) == (
        StopReason.UNSUPPORTED_LAYOUT,
        "it keeps no state between tokens",
    )


def test_a_long_row_counts_whole_before_it_is_computed() -> None:
    pooled = engine(StateLayout(()))
    submit(pooled, "texts", range(0), rows=LONG[:1])
    (run,) = pooled.loop._runs.values()
    counted = list[int]()
    while not values(pooled, "texts"):
        view, shape = run.view(), MemoryShape(step=StepCost(token_bytes=1, pair_bytes=1))
        first = view if isinstance(view, WaitingView) else None
        demand = demand_of([view], {view.id: shape}, GRID, first)
        counted.append(demand.waiting_bytes if first is not None else demand.step_bytes)
        pooled.step()
    assert set(counted) == {100 + 100**2}
    assert len(counted) > 1


def test_a_stream_goes_on_between_the_passes_of_long_rows() -> None:
    pooled = engine(StateLayout(()))
    pooled.submit("chat", range(30), 60)
    pooled.step()
    submit(pooled, "texts", range(0), rows=LONG)
    decoded = list[int]()
    while len(decoded) < len(LONG):
        pooled.step()
        decoded += [len(pooled.tokens("chat"))] * (len(values(pooled, "texts")) - len(decoded))
    assert sorted(set(decoded)) == decoded


def test_a_failing_batch_ends_its_request_only() -> None:
    def fail(operation: str, id: SequenceId | None, _call: int) -> None:
        if (operation, id) == ("pool", SequenceId(0)):
            raise ComputeFailed("planted")

    pooled = engine(hook=fail)
    submit(pooled, "fails")
    submit(pooled, "texts")
    pooled.submit("chat", range(30), 4)
    pooled.run()
    error = pooled.end("fails").error
    assert error is not None
    assert "planted" in error.message
    assert values(pooled, "texts") == alone(ATTENTION)
    assert len(pooled.tokens("chat")) == 4
