"""Models of other state layouts through the service: repeated, continued, edited and restarted, answers stay.

Tiny random models, one a layout. What is computed is held against the tokens that were never sent before:

    repeat       one token, before and after a restart
    continued    the new tokens, and one more where the last token of the answer was sampled but not computed
    edited       back to the nearest block boundary, or with recurrent layers to the nearest grid position
"""

from pathlib import Path
from typing import Any

import httpx
import pytest

from application.settings import EngineSettings
from tests.support.http.replay.replay import Answer, Replay, cacheless_server, caching_server, some_tokens
from tests.support.mlx.tiny_models import write_folder

pytestmark = pytest.mark.slow

SLICED, RECURRENT = ("gemma3_text",), ("mamba2", "deepseek_v41")
NAMES = (*SLICED, *RECURRENT)
BLOCK, GRID = 64, 128  # small, so that prompts need not be long; the defaults are used in test_replay_restarts
ENGINE = EngineSettings(block_size=BLOCK, prefill_grid=GRID)
NUM_PROMPT, EDIT_AT = 160, 138
WANTED: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True}


PROMPT = some_tokens(NUM_PROMPT, 1)
EDITED = [*PROMPT[:EDIT_AT], *some_tokens(NUM_PROMPT - EDIT_AT, 2)]


def play(replay: Replay) -> list[Answer]:
    """A prompt, the same again, the prompt with its answer and something new, and the prompt edited."""
    first = replay.complete(PROMPT)
    continued = [*PROMPT, *first.output_ids, *some_tokens(30, 3)]
    return [first, replay.complete(PROMPT), replay.complete(continued), replay.complete(EDITED)]


def replay_all(client: httpx.Client) -> dict[str, list[Answer]]:
    return {name: play(Replay(client, name, **WANTED)) for name in NAMES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_folder(name, made / name)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, list[Answer]]:
    with cacheless_server(folder, ENGINE) as client:
        return replay_all(client)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def answers(folder: Path, store: Path) -> dict[str, list[Answer]]:
    """Of a caching server; the last two of each model come from a second one on the same store."""
    with caching_server(store, ENGINE, folder) as server:
        found = replay_all(server.client)
    with caching_server(store, ENGINE, folder) as server:
        for name, given in found.items():
            replay = Replay(server.client, name, **WANTED)
            given += [replay.complete(given[0].prompt_ids), replay.complete(given[2].prompt_ids)]
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.exact
def test_answers_are_those_of_a_server_without_a_cache(
    name: str, answers: dict[str, list[Answer]], expected: dict[str, list[Answer]]
) -> None:
    wanted = expected[name]
    assert all(answer.num_cached == 0 for answer in wanted)
    assert len({answer.output_ids for answer in wanted}) == 3, "different prompts must differ in their answers"
    assert [answer.output_ids for answer in answers[name]] == [
        answer.output_ids for answer in (*wanted, wanted[0], wanted[2])
    ]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_computed(name: str, answers: dict[str, list[Answer]]) -> None:
    first, repeated, continued, edited, again, continued_again = answers[name]
    assert first.num_cached == 0
    assert continued.num_new == 30
    assert continued.num_computed in (30, 31)
    assert edited.num_shared == EDIT_AT
    assert edited.num_computed <= edited.num_new + EDIT_AT % (BLOCK if name in SLICED else GRID)
    assert [answer.num_computed for answer in (repeated, again, continued_again)] == [1, 1, 1]
