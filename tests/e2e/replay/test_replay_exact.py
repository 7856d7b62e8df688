"""Exact mode over HTTP: not a bit of any log probability tells a restored prefix from a recomputed one."""

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.prefix.explanation import common_length
from tests.support.http.replay.replay import (
    CACHELESS,
    TOOLS,
    Message,
    cairn_server,
    opening,
    question,
    tool_call,
    wait_until_written,
)
from tests.support.mlx.small_demos import SMALL_DEMOS

pytestmark = pytest.mark.slow

GRID = 128
FLAGS = ("--block-size", str(GRID), "--prefill-grid", str(GRID))
BODY: dict[str, Any] = {
    "tools": TOOLS, "temperature": 0, "max_tokens": 8, "logprobs": True, "top_logprobs": 5, "return_token_ids": True,
}  # fmt: skip


def turns() -> list[list[Message]]:
    """A conversation of four turns, one with a tool, and an edit of its second question."""
    first = [*opening(20), question(1)]
    second = [*first, {"role": "assistant", "content": "Go on."}, question(2)]
    third = [*second, *tool_call("Oslo")]
    fourth = [*third, {"role": "assistant", "content": "Snow."}, question(3)]
    return [first, second, third, fourth, [*first, {"role": "assistant", "content": "Go on."}, question(4)]]


def ask(client: httpx.Client, model: str, messages: list[Message]) -> tuple[tuple[int, ...], int, Any]:
    """The prompt, how much of it was restored, and the answer with every number in it."""
    response = client.post("/v1/chat/completions", json={**BODY, "model": model, "messages": messages})
    assert response.status_code == 200, response.text
    answer = response.json()
    choice = answer["choices"][0]
    assert len(choice["logprobs"]["content"]) > 1
    num_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tuple(answer["prompt_token_ids"]), num_cached, (choice["message"], choice["logprobs"])


@pytest.fixture(scope="module")
def recomputed(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """By a process as well: this one computes with another BLAS."""
    flags = (*CACHELESS, "--model-dir", str(demos), *FLAGS)
    with cairn_server(tmp_path_factory.mktemp("home"), *flags) as (_, client):
        return {model: [ask(client, model, messages)[2] for messages in turns()] for model in SMALL_DEMOS}


def test_restored_and_recomputed_answers_are_equal_to_the_last_bit(
    tmp_path: Path, demos: Path, recomputed: dict[str, list[Any]]
) -> None:
    """Before and after a kill, and after a stop. What is restored ends on the grid, and is all there is up to there."""
    arguments = ("--exact", "--model-dir", str(demos), "--store", str(tmp_path / "store"), *FLAGS)
    order = {signal.SIGKILL: (0, 1, 2, 3, 3), signal.SIGTERM: (4, 3), None: (3,)}
    known: dict[str, list[tuple[int, ...]]] = {model: [] for model in SMALL_DEMOS}
    for end, numbers in order.items():
        with cairn_server(tmp_path, *arguments, OTEL_SDK_DISABLED="false") as (cairn, client):
            for model in SMALL_DEMOS:
                for number in numbers:
                    prompt, num_cached, answer = ask(client, model, turns()[number])
                    assert answer == recomputed[model][number]
                    shared = max((common_length(other, prompt) for other in known[model]), default=0)
                    assert num_cached == min(shared, len(prompt) - 1) // GRID * GRID
                    known[model].append(prompt)
            assert num_cached >= 2 * GRID
            if end is signal.SIGKILL:
                wait_until_written(client)
            if end is not None:
                cairn.send(end)
                assert cairn.wait() == (0 if end is signal.SIGTERM else -end)
