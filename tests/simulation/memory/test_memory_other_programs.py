"""A Mac on which another program takes memory and gives it back while requests run."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from adapters.system.machine import SystemMemory
from application.ports.engine import Submission
from domain.ids import RequestId
from domain.memory.ledger import MemoryReading
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.sampling import SamplingParams
from tests.simulation.memory.metered_engine import Meter
from tests.simulation.memory.test_memory_runs import MODEL, BoundServer
from tests.simulation.workload import VOCAB
from tests.support.effort import drawn
from tests.support.engines.fake_mac import FakeMac

PAGE = 64


class MeteredMac:
    """A MemoryProbe of a Mac that has twice what the engine may hold. `taken`: the share of it that is wired or
    compressed for another program. What the engine holds is wired too, as a GPU's buffers are while it computes."""

    def __init__(self, meter: Meter, monkeypatch: pytest.MonkeyPatch, total_bytes: int) -> None:
        self._meter, self._calls, self.total_bytes = meter, FakeMac(), total_bytes
        self.taken = 0.0
        self._host = SystemMemory(mac=self._calls)
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": PAGE, "SC_PHYS_PAGES": total_bytes // PAGE}.__getitem__)

    def read(self) -> MemoryReading:
        self._calls.footprint = self._meter.held_bytes() + self._meter.cached_bytes
        self._calls.level = max(0, int(100 * (1 - self.taken - self._calls.footprint / self.total_bytes)))
        return replace(self._host.read(), cached_bytes=self._meter.cached_bytes)


@pytest.mark.parametrize("part", range(2))
def test_marks_follow_what_another_program_takes_and_gives_back(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = set[str]()
    for seed in range(part, drawn(12), 2):
        macs: list[MeteredMac] = []

        def probe_of(meter: Meter, macs: list[MeteredMac] = macs) -> MeteredMac:
            macs.append(MeteredMac(meter, monkeypatch, 2 * meter.limits.total_bytes))
            return macs[0]

        server = BoundServer(
            Random(seed), "hybrid", room=2, hot_share=0.9, live_share=0.3, max_batch=4, probe_of=probe_of
        )
        (mac,) = macs
        _work(server, 120)
        budget = server.hot.budget_bytes
        held = server.meter.held_bytes()
        mac.taken = 1 - held * 0.95 / mac.total_bytes  # less is left than the engine holds
        lowest = _work(server, 40)
        assert lowest < budget or budget == 0, (seed, lowest, budget)
        assert server.meter.held_bytes() < held, seed
        mac.taken = 0.0
        outcomes = server.finish()
        _rest(server)
        assert outcomes.keys() == {"ended"}, (seed, outcomes)
        assert server.hot.budget_bytes > budget * 0.9, (seed, server.hot.budget_bytes, budget)
        assert server.meter.problems == [], seed
        kinds |= server.actions()
    assert {"shrink_hot", "grow_hot", "pause", "resume"} <= kinds


def test_kept_state_is_evicted_for_what_is_admitted_where_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fits into what the engine may hold, but not into what another program leaves of it."""
    macs: list[MeteredMac] = []

    def probe_of(meter: Meter) -> MeteredMac:
        macs.append(MeteredMac(meter, monkeypatch, 2 * meter.limits.total_bytes))
        return macs[0]

    server = BoundServer(Random(1), "hybrid", room=2, hot_share=0.9, live_share=0.0, max_batch=4, probe_of=probe_of)
    (mac,) = macs
    shape = server.meter.models[0].shape
    for first, num_prompt in ((0, 400), *((1 + at, 80) for at in range(9))):
        ask(server, [(first + at * at) % VOCAB for at in range(num_prompt)])
        server.finish()
        _rest(server)
    needed = shape.weight_bytes + server.meter.other_bytes + shape.state_bytes(740)
    assert shape.state_bytes(500) < server.hot.held_bytes()
    mac.taken = 1 - needed / mac.total_bytes  # the hard mark is below it
    ask(server, [at * at % VOCAB for at in range(740)])
    server.finish()
    assert server.meter.num_calls["restore"] == 1
    assert server.meter.problems == []


def ask(server: BoundServer, token_ids: Sequence[int], num_new: int = 1, num_choices: int = 1) -> None:
    submission = Submission(
        id=RequestId(f"r{len(server.asked)}"),
        model=MODEL,
        prompt=EncodedPrompt.of_text(token_ids),
        sampling=SamplingParams(temperature=0.0, seed=0),
        seed=0,
        max_new_tokens=num_new,
        num_choices=num_choices,
    )
    server.asked.append(submission)
    server.loop.add(submission)


def _rest(server: BoundServer) -> None:
    for _ in range(40):
        server.loop.plan_idle()
        server.lane.run()
        server.writer.pump(3)


def _work(server: BoundServer, num_steps: int) -> int:
    """Returns the lowest budget of the hot tier behind any of the steps."""
    lowest = server.hot.budget_bytes
    for number in range(num_steps):
        if number % 10 == 0:
            server.submit()
        server.step()
        server.lane.run()
        server.writer.pump(3)
        lowest = min(lowest, server.hot.budget_bytes)
    return lowest
