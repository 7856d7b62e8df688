"""The two sides over a channel that breaks at any message: open requests continue as if nothing had happened.

Nothing can overtake anything on a socket: what can happen is that it ends, and when.
"""

import asyncio
from itertools import chain, repeat
from random import Random

import pytest

from adapters.engine_process.engine import EngineProcess
from adapters.system.clock import SystemClock
from application.events import EngineRestarted, ModelLoaded
from application.ports.engine import MakeInstance
from application.services.text_side.models.load_failures import MAX_RELOADS
from domain.ids import RequestId
from domain.request.request import FinishReason
from tests.support.effort import drawn
from tests.support.engines.engine_client import DRAFTING, EngineClient, hosted_toy, source
from tests.support.engines.process.all_streams import (
    NUM_CHOICES,
    STREAMS,
    check_same,
    check_told,
    end_of,
    play,
    scores,
    tokens,
)
from tests.support.engines.sync_engine import usage_of
from tests.support.processes.dying_channel import Fuse
from tests.support.processes.hosted_child import HostedChild

MIN_MESSAGES = 8
"""An engine that ends at an earlier message ends while it loads the model, and the load is blamed for it."""


def dying(*num_messages: int) -> MakeInstance:
    """Engines that each end at a message of theirs; after these, one that does not."""
    fuses = chain(map(Fuse, num_messages), (Fuse(None) for _ in repeat(0)))
    return lambda lost: EngineProcess(HostedChild(hosted_toy, next(fuses).opens), b"", SystemClock(), lost=lost)


@pytest.fixture(scope="module")
def calm() -> EngineClient:
    """Nothing is lost, and no draft is verified."""
    return play(dying())


DRAFTED = source(DRAFTING)
"""The same model with a drafter, which all others use."""


def test_drafts_change_no_token(calm: EngineClient) -> None:
    drafted = play(dying(), model=DRAFTED)
    check_same(drafted, calm)
    usages = [usage_of(drafted.items(id, choice)) for id, number in NUM_CHOICES.items() for choice in range(number)]
    num_accepted = sum(usage.num_accepted for usage in usages)
    assert 20 < num_accepted < sum(usage.num_proposed for usage in usages)


@pytest.mark.parametrize("seed", range(drawn(12)))
def test_one_loss_at_any_message_is_a_pause(calm: EngineClient, seed: int) -> None:
    draw = Random(seed)
    disturbed = play(dying(draw.randrange(MIN_MESSAGES, 70)), model=DRAFTED)
    check_same(disturbed, calm)
    assert scores(disturbed, "scored") == scores(calm, "scored")
    num_restarts = sum(isinstance(event, EngineRestarted) for event in disturbed.events)
    assert sum(isinstance(event, ModelLoaded) for event in disturbed.events) >= 1
    assert num_restarts <= 1


@pytest.mark.parametrize("seed", range(drawn(5)))
def test_each_further_loss_ends_one_request_at_most(calm: EngineClient, seed: int) -> None:
    draw = Random(seed)
    num_losses = draw.randrange(2, 5)
    disturbed = play(
        dying(draw.randrange(20, 60), *(draw.randrange(6, 50) for _ in range(num_losses - 1))), model=DRAFTED
    )
    check_told(disturbed)
    errors = [error.code for id in NUM_CHOICES if (error := end_of(disturbed, id, 0).error) is not None]
    assert errors.count("engine_lost") <= num_losses - 1
    assert "model_load_failed" not in errors or num_losses > MAX_RELOADS, "it is tried twice"
    for id, number in NUM_CHOICES.items():
        for choice in range(number):
            end, expected = end_of(disturbed, id, choice), tokens(calm, id, choice)
            found = tokens(disturbed, id, choice)
            if end.error is None:
                assert found == expected
            else:
                assert found == expected[: len(found)]
                assert end.usage.completion_tokens == len(found)


@pytest.mark.parametrize("seed", range(drawn(4)))
def test_who_is_cancelled_around_a_loss_ends_once(calm: EngineClient, seed: int) -> None:
    draw = Random(seed)
    victims = draw.sample(sorted(STREAMS), 4)

    async def cancel(client: EngineClient) -> None:
        loop = asyncio.get_running_loop()
        for id in victims:
            loop.call_later(draw.random() * 0.05, client.engine.cancel, RequestId(id))

    disturbed = play(dying(draw.randrange(12, 60)), cancel, DRAFTED)
    check_told(disturbed)
    for id, number in NUM_CHOICES.items():
        for choice in range(number):
            end, found, expected = (
                end_of(disturbed, id, choice),
                tokens(disturbed, id, choice),
                tokens(calm, id, choice),
            )
            assert end.error is None
            assert found == expected[: len(found)]
            if end.reason is not FinishReason.CANCELLED:
                assert found == expected
            else:
                assert id in victims
