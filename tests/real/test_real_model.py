"""A real small chat model (SmolLM2-135M-Instruct), served as it is: `make test-real` fetches and converts it.

What a trained model says can be judged by a reader: answers are right, and equal to mlx-lm's to the token.
"""

import json
import math
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import pytest

from tests.support.http.replay.replay import CACHELESS, Replay, cairn_server, question, wait_until_written

FOLDER = os.environ.get("TEST_REAL_MODEL", "")
MODEL = "smollm2"
TEXT = Path(__file__).parents[2] / "LICENSE"
pytestmark = pytest.mark.skipif(not FOLDER, reason="`make test-real` fetches the model")

Message = dict[str, Any]


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / MODEL).symlink_to(FOLDER)
    return folder


@pytest.fixture(scope="module")
def client(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    home = tmp_path_factory.mktemp("home")
    with cairn_server(home, "--model-dir", str(models), "--store", str(home / "store")) as (_, client):
        yield client


def say(client: httpx.Client, *messages: Message, **fields: Any) -> str:
    return Replay(client, MODEL, **{"max_tokens": 32, **fields}).chat(messages).text


@pytest.mark.parametrize(
    ("asked", "word"), [("What is the capital of France?", "Paris"), ("What is 2 + 2? Answer with a number.", "4")]
)
def test_it_knows(client: httpx.Client, asked: str, word: str) -> None:
    assert word in say(client, user(asked))


def test_it_extracts_json(client: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
    text = say(client, user("Extract name and age as JSON: Anna is 31 years old."), response_format=form)
    assert json.loads(text) == {"name": "Anna", "age": 31}


def test_greedy_text_is_mlx_lm_s(client: httpx.Client) -> None:
    mlx_lm: Any = pytest.importorskip("mlx_lm")
    network, tokenizer = mlx_lm.load(FOLDER)
    network.set_dtype(mx.float32)
    for asked in ("Name three colours.", "Why is the sky blue?"):
        prompt = tokenizer.apply_chat_template([user(asked)], add_generation_prompt=True)
        expected = mlx_lm.generate(network, tokenizer, prompt, max_tokens=48)
        assert say(client, user(asked), max_tokens=48) == expected


def test_perplexity_is_mlx_lm_s(client: httpx.Client) -> None:
    mlx_lm: Any = pytest.importorskip("mlx_lm")
    network, tokenizer = mlx_lm.load(FOLDER)
    network.set_dtype(mx.float32)
    ids: list[int] = tokenizer.encode(TEXT.read_text(), add_special_tokens=False)[:300]
    logits = network(mx.array([ids]))[0, :-1]
    chosen = mx.take_along_axis(logits, mx.array(ids[1:])[:, None], 1)[:, 0] - mx.logsumexp(logits, -1)
    expected = math.exp(-mx.mean(chosen).item())
    body = {"model": MODEL, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
    (choice,) = client.post("/v1/completions", json=body).raise_for_status().json()["choices"]
    scores = [one[str(id)]["logprob"] for id, one in zip(ids[1:], choice["prompt_logprobs"][1:], strict=True)]
    assert math.exp(-sum(scores) / len(scores)) == pytest.approx(expected, rel=1e-3)


def test_eight_at_once_answer_as_each_alone(client: httpx.Client) -> None:
    countries = ("France", "Italy", "Spain", "Japan", "Egypt", "Germany", "Russia", "Greece")
    asked = [user(f"What is the capital of {country}?") for country in countries]
    alone = [say(client, one) for one in asked]
    with ThreadPoolExecutor(len(asked)) as threads:
        together = list(threads.map(lambda one: say(client, one), asked))
    assert "Paris" in together[0]
    assert together == alone


def test_a_conversation_outlives_a_restart_and_a_kill(models: Path, tmp_path: Path) -> None:
    """Six turns behind an agent's long system prompt; the third after a stop, the fifth after kill -9."""
    system = {"role": "system", "content": f"You are a helpful assistant. Notes:\n{TEXT.read_text()[:6_000]}"}
    flags = ("--model-dir", str(models), "--store", str(tmp_path / "store"))
    messages = [system]
    for lives, end in enumerate((signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)):
        with cairn_server(tmp_path, *flags) as (cairn, client):
            replay = Replay(client, MODEL, max_tokens=24)
            for number in (2 * lives, 2 * lives + 1):
                messages.append(question(number))
                answer = replay.chat(messages)
                assert number == 0 or answer.num_computed < 200, "the system prompt alone has more tokens"
                messages.append({"role": "assistant", "content": answer.text})
            wait_until_written(client)
            cairn.send(end)
            cairn.wait()
    with cairn_server(tmp_path / "other", "--model-dir", str(models), *CACHELESS) as (_, client):
        recomputed = Replay(client, MODEL, max_tokens=24)
        for at in range(1, len(messages), 2):
            assert recomputed.chat(messages[: at + 1]).text == messages[at + 1]["content"]
