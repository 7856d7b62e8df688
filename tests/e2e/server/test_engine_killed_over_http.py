"""kill -9 of the engine under eight answers over HTTP: each client gets, to the token, what it gets undisturbed.

Kept short by default; `make test-long` kills two hundred times.
"""

import json
import logging
import sys
from pathlib import Path
from random import Random

import pytest

from tests.support.effort import EFFORT
from tests.support.engines.killed_engine import KilledServer, killed_server
from tests.support.http.answer_streams import STREAMS, WORDS, Answer
from tests.support.mlx.small_demos import SMALL_DEMO, SMALL_HYBRID, write_small_demos

IS_LONG = EFFORT >= 5
SHARE_WITHIN = 0.85 if IS_LONG else 0.1
"""Of the events of the undisturbed answers, before which the engine is killed. A toy may have computed all before a
client has read half of it, so that late kills disturb nobody: those are for the long runs."""

NUM_WARM = 10
MORE_THREADS, MORE_BYTES = 4, 16 << 20
"""What the server's process may hold more after all kills than after the first few."""

_logger = logging.getLogger(__name__)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")


def check_calm(answers: dict[str, Answer]) -> None:
    """They are what was asked for, and so worth to be compared with."""
    assert {name: answer.problems for name, answer in answers.items()} == {name: [] for name in STREAMS}
    for name in ("called", "message_called"):
        (call,) = answers[name].calls.values()
        assert call.startswith("report")
        assert len(json.loads(call.removeprefix("report"))["days"]) == WORDS["minItems"]
    for name in ("formed", "response_formed"):
        assert len(json.loads(answers[name].texts[0])["days"]) == WORDS["minItems"]
    assert len(answers["choices"].texts) == 2
    assert all(answer.ends and answer.num_tokens for answer in answers.values())


def kill_times(server: KilledServer, num_kills: int, seed: int) -> None:
    calm, num_events = server.calm()
    check_calm(calm)
    most, draw, held = int(num_events * SHARE_WITHIN), Random(seed), server.held()
    for number in range(num_kills):
        # Every other time nothing of the prompts is in the store, and the engine may be killed while it computes them.
        answers = server.disturbed(draw, most, f"salt {number}" if number % 2 else "")
        for name in STREAMS:
            assert answers[name] == calm[name], (seed, number, name)
        if number == NUM_WARM - 1:
            held = server.held()
    after = server.held(held)
    _logger.info("%d kills: choices that went on %s; held %s, then %s", num_kills, server.num_resumed, held, after)
    assert after.children == held.children
    assert after.num_descriptors <= held.num_descriptors
    if num_kills > NUM_WARM:  # pools of threads have grown to their bounds by then
        assert sum(map(bool, server.num_resumed)) >= num_kills / 4, "they were killed too late to disturb anybody"
        assert after.num_threads <= held.num_threads + MORE_THREADS
        assert after.resident_bytes <= held.resident_bytes + MORE_BYTES


def test_of_the_toy_models(tmp_path: Path) -> None:
    with killed_server(tmp_path, ("--backend", "fake"), is_killed_often=IS_LONG) as server:
        kill_times(server, 100 if IS_LONG else 1, seed=1)


@pytest.mark.skipif(not IS_LONG, reason="a hundred starts of MLX")
@pytest.mark.parametrize(("name", "seed"), [(SMALL_DEMO, 2), (SMALL_HYBRID, 3)])
def test_of_models_on_mlx(tmp_path: Path, name: str, seed: int) -> None:
    folder = write_small_demos(tmp_path / "models") / name
    with killed_server(tmp_path, (str(folder), "--memory", "1GiB"), is_killed_often=True) as server:
        kill_times(server, 50, seed)
