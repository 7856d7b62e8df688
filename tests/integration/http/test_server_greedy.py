"""What the engine loop says equals a plain loop over `model(tokens, cache)`, token for token, alone and in company."""

from collections.abc import Mapping
from random import Random

import mlx.core as mx
import pytest

from adapters.fake.environment import FakeClock
from adapters.mlx.engine import MlxEngine
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from application.ports.compute import LoadSteps
from application.ports.tokenizer import EncodedPrompt
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from domain.scheduling.step_values import StepLimits
from tests.support.engines.sync_engine import Inbox, SyncEngine, submission
from tests.support.mlx.tiny_models import build, tiny_model
from tests.support.stores.caches import prefix_cache

FAMILIES = ("llama", "gemma2", "gemma3_text", "qwen3_next")
"""Of full, windowed and recurrent layers, and one that cannot be batched (gemma2); test_mlx_greedy has the others."""
GRID = 32
WAIT_S = 120.0


class TinyEngine(MlxEngine):
    """Loads tiny models by family, on the compute thread, as any engine does."""

    def load(self, source: ModelSource, options: LoadOptions) -> LoadSteps:
        yield
        return tiny_model(source.id)

    def memory(self) -> Mapping[str, int]:
        return {}


def plain_greedy(network: object, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    """The reference: one sequence, one cache, the canonical chunks, one token at a time."""
    cache = mlx_lm_module("models.cache").make_prompt_cache(network)
    for start in range(0, len(prompt) - 1, GRID):
        network(mx.array([prompt[start : min(start + GRID, len(prompt) - 1)]]), cache=cache)  # type: ignore[operator]
        mx.eval([part.state for part in cache])
    tokens = [prompt[-1]]
    for _ in range(num_tokens):
        logits = network(mx.array([tokens[-1:]]), cache=cache)  # type: ignore[operator]
        tokens.append(int(mx.argmax(logits[0, -1]).item()))
    return tokens[1:]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_output_equals_the_plain_loop(name: str) -> None:
    random = Random(name)
    lengths = [90, 1, 2, 33, 64, 65, 17, 40]
    prompts = [tuple(random.randrange(1, 250) for _ in range(length)) for length in lengths]
    num_tokens = [16, 5, 26, 8, 20, 6, 14, 11]
    limits = StepLimits(8, GRID, GRID)
    loop = SyncEngine(TinyEngine, prefix_cache=prefix_cache(), limits=limits, clock=FakeClock(), inbox=Inbox())
    loop.start()
    try:
        loop.load(ModelSource(ModelId(name), "tiny"), LoadOptions()).result(WAIT_S)
        loop.submit(submission("alone", ModelId(name), EncodedPrompt.of_text(prompts[0]), num_tokens[0]))
        alone = loop.tokens("alone", WAIT_S)
        for index, prompt in enumerate(prompts):  # shorter ones leave and later ones join while others run
            loop.submit(submission(str(index), ModelId(name), EncodedPrompt.of_text(prompt), num_tokens[index]))
        crowded = [loop.tokens(str(index), WAIT_S) for index in range(len(prompts))]
    finally:
        assert loop.stop(WAIT_S)
    network = build(name)
    expected = [plain_greedy(network, prompt, count) for prompt, count in zip(prompts, num_tokens, strict=True)]
    assert alone == expected[0]
    assert crowded == expected
