"""One room for all that begins in a step: two that hold their bytes at once, each of which fits, and not both."""

from dataclasses import replace

import pytest

from tests.simulation.test_memory_next_turn import server_of, submission

MAX_STEPS = 200


@pytest.mark.parametrize("room", [2.05, 2.2, 2.6])
def test_a_row_is_copied_and_a_choice_is_forked_in_the_same_step(room: float) -> None:
    """One ends beside another, whose batch holds its row until it decodes again, just as a prompt comes to its end."""
    server = server_of("attention", room=room, hot_share=0.0)
    ends = replace(submission(0, range(200)), max_new_tokens=7)
    stays = replace(submission(1, range(5_000, 5_020)), max_new_tokens=40)
    forks = replace(submission(2, range(1_000, 1_200)), max_new_tokens=2, num_choices=2)
    server.asked += [ends, stays, forks]
    for one in (ends, stays):
        server.loop.add(one)
    for _ in range(6):
        server.lane.run()
        server.step()
    server.loop.add(forks)
    for _ in range(MAX_STEPS):
        server.lane.run()
        server.step()
    assert not server.loop.is_busy
    assert server.meter.problems == []
    assert server.meter.num_calls["leave"]
    assert server.live.check_integrity() == []
