"""What lm-eval asks of a server, asked of small models over a socket: loglikelihoods are those of a plain pass.

The bodies are those of lm-eval 0.4.13's `local-completions`, and answers are read as it reads them; docs/http-api.md
says how to run lm-eval itself.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import httpx
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.mlx.small_demos import SMALL_DEMOS, write_small_demos
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
"""Of one token's log probability, in float32."""

PAIRS = (
    ("Question: What is the capital of France?\nAnswer:", " Paris"),
    ("Question: What is the capital of France?\nAnswer:", " a very long road"),
    ("Grüße 🪨: which of these is a stone?", " naïve 🪨"),
    ("The cairn stands on the hill. " * 66, " Its stones are grey."),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_demos(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=SMALL_DEMOS)
def live(
    request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveService]:
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=request.param, dirs=(str(models),), dtype="float32", download=False),
        store=StoreSettings(dir=str(tmp_path_factory.mktemp("store"))),
    )
    with live_service(settings) as running:
        yield running


@pytest.fixture
def folder(live: LiveService, models: Path) -> Path:
    """Of the model that is served."""
    served = httpx.get(f"{live.base_url}/health/ready", timeout=PATIENCE_S).json()["models"]
    return models / served[0]


def post(live: LiveService, body: dict[str, Any], path: str = "completions") -> Any:
    response = httpx.post(f"{live.base_url}/v1/{path}", json=body, timeout=600)
    assert response.status_code == 200, response.text
    return response.json()


def plain_logprobs(folder: Path, prompts: Sequence[Sequence[int]]) -> list[np.ndarray[Any, Any]]:
    """[tokens, vocabulary] of one pass of mlx-lm's own model over each prompt, and nothing else."""
    network, _ = load_model(folder)
    network.set_dtype(mx.float32)
    logits = [network(mx.array([list(ids)]))[0] for ids in prompts]
    return [np.array(one - mx.logsumexp(one, axis=-1, keepdims=True)) for one in logits]


def encoded_pairs(folder: Path) -> list[tuple[list[int], int]]:
    """Token ids of context and continuation together, and how many are context."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    encoded = [
        [tokenizer.encode(text, add_special_tokens=False).ids for text in (*pair, "".join(pair))] for pair in PAIRS
    ]
    return [(whole, len(context)) for context, _, whole in encoded]


def loglikelihoods(answer: Any, num_context: Sequence[int]) -> list[tuple[float, bool]]:
    """As lm-eval's `parse_logprobs` reads them."""
    found: list[tuple[float, bool]] = []
    for choice, start in zip(sorted(answer["choices"], key=itemgetter("index")), num_context, strict=True):
        values, tops = (choice["logprobs"][name][start:-1] for name in ("token_logprobs", "top_logprobs"))
        is_greedy = all(value == max(top.values()) for value, top in zip(values, tops, strict=True))
        found.append((sum(values), is_greedy))
    return found


def test_loglikelihoods_are_those_of_a_plain_pass(live: LiveService, folder: Path) -> None:
    pairs = encoded_pairs(folder)
    prompts, num_context = [ids for ids, _ in pairs], [start for _, start in pairs]
    plain = plain_logprobs(folder, prompts)
    expected = [
        [float(rows[at - 1, ids[at]]) for at in range(1, len(ids))] for ids, rows in zip(prompts, plain, strict=True)
    ]
    body = {
        "model": folder.name,
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    post(live, {"model": folder.name, "prompt": prompts[-1], "max_tokens": 1})  # so that something could be reused
    answer = post(live, body)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    for choice, values in zip(answer["choices"], expected, strict=True):
        assert choice["logprobs"]["token_logprobs"][1:-1] == pytest.approx(values, abs=TOLERANCE)
    for (found, is_greedy), (ids, start), rows in zip(loglikelihoods(answer, num_context), pairs, plain, strict=True):
        assert found == pytest.approx(
            sum(float(rows[at - 1, ids[at]]) for at in range(start, len(ids))), abs=TOLERANCE * len(ids)
        )
        assert is_greedy is all(int(rows[at - 1].argmax()) == ids[at] for at in range(start, len(ids)))


def test_a_continuation_that_the_model_would_choose_is_called_greedy(live: LiveService, folder: Path) -> None:
    prompt = encoded_pairs(folder)[0][0]
    chosen = post(live, {"prompt": prompt, "temperature": 0, "max_tokens": 6, "return_token_ids": True})
    whole = [*prompt, *chosen["choices"][0]["token_ids"]]
    body = {"prompt": [whole, [*whole[:-1], whole[-1] - 1]], "temperature": 0, "max_tokens": 1, "logprobs": 1}
    found = loglikelihoods(post(live, {**body, "echo": True}), [len(prompt), len(prompt)])
    assert [is_greedy for _, is_greedy in found] == [True, False]


def test_generation_is_asked_for_as_lm_eval_does(live: LiveService, folder: Path) -> None:
    stop = ["\n", "<|end|>"]
    sampling = {"model": folder.name, "max_tokens": 16, "temperature": 0, "stop": stop, "seed": 1234}
    answer = post(live, {"prompt": [ids for ids, _ in encoded_pairs(folder)[:2]], **sampling})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert all(isinstance(choice["text"], str) for choice in answer["choices"])
    messages = [{"role": "user", "content": "Hello", "type": "text"}]
    answer = post(live, {"messages": messages, **sampling}, "chat/completions")
    assert answer["choices"][0]["message"]["content"] is not None
