"""A compaction is one more turn: at most MORE_TOKENS beyond its instruction are computed, on models of every layout."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from application.settings import EngineSettings
from interfaces.http.responses.compaction import INSTRUCTION
from tests.support.http.replay.replay import CachingServer, caching_server, opening
from tests.support.mlx.tiny_models import write_folder

pytestmark = pytest.mark.slow

HYBRID, WINDOWED = "cairn-demo-hybrid", "gemma3_text"
ENGINE = EngineSettings(block_size=64, prefill_grid=64)
MORE_TOKENS = 16
TRIGGER = {"type": "compaction_trigger"}
TOOLS = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}]


@pytest.fixture(scope="module")
def caching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CachingServer]:
    folder: Path = tmp_path_factory.mktemp("models")
    write_folder(WINDOWED, folder / WINDOWED)
    with caching_server(tmp_path_factory.mktemp("store"), ENGINE, folder) as server:
        yield server


def ask(server: CachingServer, model: str, items: list[dict[str, Any]], path: str = "", **fields: Any) -> Any:
    body = {"model": model, "input": items, "temperature": 0, "max_output_tokens": 40, **fields}
    answer = server.client.post(f"/v1/responses{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def question(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Hello, {number}?"}


def num_instruction(server: CachingServer, model: str) -> int:
    return len(server.client.post("/tokenize", json={"model": model, "prompt": INSTRUCTION}).json()["tokens"])


def num_computed(answer: Any) -> int:
    usage = answer["usage"]
    return int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])


@pytest.mark.parametrize("model", [HYBRID, WINDOWED])
def test_its_prompt_is_reused(caching: CachingServer, model: str) -> None:
    tools = {} if model == WINDOWED else {"tools": TOOLS}  # its template has none
    most = num_instruction(caching, model) + MORE_TOKENS
    history: list[dict[str, Any]] = opening()
    for number, (path, ending) in enumerate([("", [TRIGGER]), ("/compact", [])]):
        answer = ask(caching, model, [*history, question(number)], **tools)
        history += [question(number)]
        if model != WINDOWED:  # whose bytes at random are no text that encodes to the same tokens
            assert answer["status"] == "completed"
            history += answer["output"]
        made = ask(caching, model, [*history, *ending], path, **tools)
        assert num_computed(made) <= most < answer["usage"]["input_tokens"]
    went_on = ask(caching, model, [*made["output"], question(2)], **tools)
    assert went_on["status"] in ("completed", "incomplete")
