"""Refusals of the memory check against the guard and planner that admit: what a refusal says is so."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fake import LAYOUTS
from application.services.text_side.answers.memory_check import MemoryCheck
from domain.errors import MemoryBusy, PrefillMemoryExceeded
from domain.ids import ModelId, RequestId
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.request import GenerationRequest, TextPrompt
from domain.request.sampling import StopRules
from tests.simulation.memory.test_memory_other_programs import ask
from tests.simulation.memory.test_memory_runs import MODEL, BoundServer
from tests.simulation.workload import VOCAB
from tests.simulation.world import GRID

NAMES = tuple(name for name in LAYOUTS if name != "unsupported")


class Checked:
    """A server of one model, and the check before it. `leased_bytes`: weights of other models that requests use."""

    def __init__(self, layout: str, room: float) -> None:
        self.server = BoundServer(Random(0), layout, room=room, hot_share=0.3, live_share=0.3, max_batch=4)
        self.server.loop.plan_idle()
        self.leased_bytes = 0
        self._model = self.server.meter.models[0].description

    def status(self) -> Any:
        guard = self.server.guard
        return SimpleNamespace(limits=guard.limits, ledger=guard.ledger, prefill_chunk=GRID)

    def fixed_bytes(self, _id: ModelId, *, with_leased: bool) -> int:
        return self._model.memory.weight_bytes + with_leased * self.leased_bytes

    async def make_room(self, _most_bytes: int) -> None:
        """No model is idle."""

    def check(self, num_prompt: int, num_new: int, num_choices: int) -> int:
        """Returns the length of the answer."""
        this: Any = self
        rules = StopRules(num_new)
        request = GenerationRequest(RequestId("r"), MODEL, TextPrompt("x"), stop=rules, num_choices=num_choices)
        prompt = EncodedPrompt.of_text([0] * num_prompt)
        return asyncio.run(MemoryCheck(this, this).answer_length(request, prompt, self._model, num_new))

    def compute(self, num_prompt: int, num_new: int, num_choices: int) -> None:
        ask(self.server, [at * at % VOCAB for at in range(num_prompt)], num_new, num_choices)
        while self.server.loop.is_busy:
            self.server.step()
        assert self.server.finish().keys() == {"ended"}
        assert not {"preempt", "refuse"} & self.server.actions()
        assert self.server.meter.problems == []


@given(st.sampled_from(NAMES), st.sampled_from([0.7, 1.0, 1.4]), st.integers(1, 80), st.integers(1, 3))
def test_the_largest_prompt_that_a_refusal_names_is_computed(
    layout: str, room: float, num_new: int, num_choices: int
) -> None:
    """And one token more is refused for ever."""
    checked = Checked(layout, room)
    with pytest.raises(PrefillMemoryExceeded) as refused:
        checked.check(5_000, num_new, num_choices)
    largest = refused.value.largest_prompt
    num_new = refused.value.context_length - largest
    assert largest > 0
    with pytest.raises(PrefillMemoryExceeded):
        checked.check(largest + 1, num_new, num_choices)
    checked.check(largest, num_new, num_choices)
    checked.compute(largest, num_new, num_choices)


@given(st.sampled_from(NAMES), st.integers(1, 600), st.integers(0, 400_000))
def test_a_request_that_is_refused_as_busy_passes_when_other_models_are_unused(
    layout: str, num_prompt: int, leased_bytes: int
) -> None:
    checked = Checked(layout, 1.0)
    checked.leased_bytes = leased_bytes
    refusals, most = list[type[Exception]](), 0
    for checked.leased_bytes in (leased_bytes, 0):
        try:
            most = checked.check(num_prompt, 4, 1)
        except (MemoryBusy, PrefillMemoryExceeded) as error:
            refusals.append(type(error))
    assert refusals in ([], [MemoryBusy], [PrefillMemoryExceeded] * 2)
    if refusals[1:]:
        return
    checked.compute(num_prompt, most, 1)
