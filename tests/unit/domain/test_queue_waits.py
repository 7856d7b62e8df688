"""The reasons why queued sequences wait, and the end of waiting for memory."""

from dataclasses import replace
from typing import Any

from domain.ids import BlockHash
from domain.scheduling.plan_step import plan_step
from domain.scheduling.queue_waits import QueueWaits, WaitReason
from domain.scheduling.sequence import Phase
from domain.scheduling.step_values import SequenceView, StepBudget, StepLimits
from tests.support.engines.sequence_views import view_of

LIMITS = StepLimits(max_batch=2, prefill_budget=256, grid=256)
SECOND = 1_000_000_000


def view(id: int, phase: Phase = Phase.QUEUED, charge_bytes: int = 10) -> Any:
    return view_of(id, phase, 5, charge_bytes=charge_bytes)


def look(waits: QueueWaits, views: list[SequenceView], room_bytes: int | None, at_s: float = 0):
    plan = plan_step(views, LIMITS, StepBudget(room_bytes=room_bytes))
    return waits.update(views, LIMITS, plan, int(at_s * SECOND))


def test_each_reason_is_reported_once():
    waits = QueueWaits()
    views = [view(1, Phase.DECODING), view(2), view(3)]
    assert look(waits, views, room_bytes=5).changed == {2: WaitReason.MEMORY, 3: WaitReason.MEMORY}
    assert waits.counts == {"memory": 2}
    assert not look(waits, views, room_bytes=5).changed
    assert look(waits, views, room_bytes=100).changed == {3: WaitReason.PLACE}
    assert waits.counts == {"place": 1}
    look(waits, [view(1, Phase.DECODING)], room_bytes=100)
    assert waits.counts == {}


def test_waiting_for_memory_is_bounded():
    waits = QueueWaits(60)
    first, later = view(2), view(3)
    active = view(1, Phase.DECODING)
    assert not look(waits, [active, first], 0, at_s=100).overdue
    assert not look(waits, [active, first, later], 0, at_s=159.9).overdue
    assert look(waits, [active, first, later], 0, at_s=160).overdue == (2,)
    assert not look(waits, [active, later], 0, at_s=200).overdue
    assert look(waits, [active, later], 0, at_s=220).overdue == (3,)


def test_waiting_for_a_place_is_unbounded_and_counts_in_between():
    waits = QueueWaits(60)
    full = [view(1, Phase.DECODING), view(2, Phase.DECODING), view(3)]
    for at_s in (0, 1_000):
        assert not look(waits, full, 0, at_s=at_s).overdue
    short = [view(1, Phase.DECODING), view(3)]
    assert not look(waits, short, 0, at_s=1_010).overdue
    assert not look(waits, full, 0, at_s=1_080).overdue
    assert look(waits, short, 0, at_s=1_090).overdue == (3,)


def test_who_waits_for_a_block_that_another_begins_to_compute_waits_for_no_memory():
    waits, block = QueueWaits(1), BlockHash(b"next")
    views = [replace(view(number), next_block=block) for number in (1, 2)]
    assert look(waits, views, room_bytes=100).changed == {2: WaitReason.PREFIX}
    assert not look(waits, views, room_bytes=100, at_s=2).overdue


def test_hashing_a_prompt_is_no_wait_for_the_prefix_of_another_request():
    waits, hashing = QueueWaits(), replace(view(2), is_looked_up=False)
    assert look(waits, [view(1, Phase.DECODING), hashing], room_bytes=100).changed == {}
    full = [view(1, Phase.DECODING), view(3, Phase.DECODING), hashing]
    assert look(waits, full, room_bytes=100).changed == {2: WaitReason.PLACE}
