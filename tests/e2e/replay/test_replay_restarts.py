"""A conversation that outlives its server: stopped in order, and killed at once after what it captured was written."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.http.replay.replay import (
    TOOLS,
    Answer,
    Message,
    Replay,
    cacheless_server,
    cairn_server,
    opening,
    question,
    tool_call,
    wait_until_written,
)
from tests.support.mlx.small_demos import SMALL_DEMOS

pytestmark = pytest.mark.slow

WANTED: dict[str, Any] = {"tools": TOOLS, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 12}


def turns() -> list[list[Message]]:
    """The messages of four requests, each continuing the one before; the third with a tool's result."""
    first = [*opening(150), question(1)]
    second = [*first, {"role": "assistant", "content": "Go on."}, question(2)]
    third = [*second, *tool_call("Oslo")]
    return [first, second, third, [*third, {"role": "assistant", "content": "Snow."}, question(3)]]


@pytest.fixture(scope="module")
def expected(demos: Path) -> dict[str, list[Answer]]:
    with cacheless_server(demos) as client:
        return {model: [Replay(client, model, **WANTED).chat(turn) for turn in turns()] for model in SMALL_DEMOS}


def test_a_conversation_goes_on_after_a_kill_and_after_a_stop(
    demos: Path, tmp_path: Path, expected: dict[str, list[Answer]]
) -> None:
    flags = ("--store", str(tmp_path / "store"), "--model-dir", str(demos))
    answers: dict[str, list[Answer]] = {model: [] for model in SMALL_DEMOS}
    with cairn_server(tmp_path, *flags, OTEL_SDK_DISABLED="false") as (cairn, client):
        replays = {model: Replay(client, model, **WANTED) for model in SMALL_DEMOS}
        for model in SMALL_DEMOS:
            answers[model] += [replays[model].chat(turn) for turn in turns()[:2]]
        wait_until_written(client)
        cairn.send(signal.SIGKILL)
        assert cairn.wait() == -signal.SIGKILL
    with cairn_server(tmp_path, *flags) as (cairn, client):
        for model, replay in replays.items():
            replay.client = client
            assert replay.chat(turns()[1]).num_computed == 1
            answers[model].append(replay.chat(turns()[2]))
        cairn.send(signal.SIGTERM)
        assert cairn.wait() == 0
    with cairn_server(tmp_path, *flags) as (_, client):
        for model, replay in replays.items():
            replay.client = client
            assert replay.chat(turns()[2]).num_computed == 1
            answers[model].append(replay.chat(turns()[3]))
    for model in SMALL_DEMOS:
        assert [answer.output_ids for answer in answers[model]] == [answer.output_ids for answer in expected[model]]
        assert all(answer.num_computed == answer.num_new for answer in answers[model])
        assert all(answer.num_new < 100 < answer.num_cached for answer in answers[model][1:])
