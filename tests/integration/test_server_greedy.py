"""What the engine loop says equals a plain loop over `model(tokens, cache)`, token for token, alone and in company."""

from collections.abc import Callable, Mapping
from random import Random

import mlx.core as mx
import pytest

from adapters.fake.clock import FakeClock
from adapters.fake.tokenizer import FakeTokenizer
from adapters.mlx.engine import MlxEngine
from adapters.mlx.file_limit import mlx_lm_module
from application.ports.compute import LoadedModel
from application.ports.tokenizer import EncodedPrompt
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.sequence_run import Submission
from domain.ids import ModelId, RequestId
from domain.model_card import ModelSource
from domain.request import GenerationRequest, TokenPrompt
from domain.sampling import SamplingParams, StopRules
from domain.scheduling import StepLimits
from domain.stream import TextDelta
from tests.support.caches import prefix_cache
from tests.support.recording import RecordingEvents, RecordingSink
from tests.support.tiny_models import build, tiny_model

FAMILIES = (
    "llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "deepseek_v3",
    "qwen3_next", "qwen3_5", "mamba2", "falcon_h1", "nemotron_h", "rwkv7", "lfm2",
)  # fmt: skip
GRID = 32
WAIT_S = 120.0


class TinyEngine(MlxEngine):
    """Loads tiny models by family, on the compute thread, as any engine does."""

    def load(self, source: ModelSource, on_progress: Callable[[str], None]) -> LoadedModel:
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


def submission(name: str, id: str, prompt: tuple[int, ...], num_tokens: int) -> Submission:
    rules = StopRules(max_tokens=num_tokens, ignore_eos=True)
    request = GenerationRequest(RequestId(id), ModelId(name), TokenPrompt(prompt), SamplingParams(temperature=0), rules)
    return Submission(
        request, EncodedPrompt(prompt), num_tokens, 1, FakeTokenizer().detokenizer(), ModelId(name), frozenset()
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_output_equals_the_plain_loop(name: str) -> None:
    random = Random(name)
    lengths = [90, 1, 2, 33, 64, 65, 17, 40]
    prompts = [tuple(random.randrange(1, 250) for _ in range(length)) for length in lengths]
    num_tokens = [24, 5, 40, 12, 30, 8, 20, 16]
    sink = RecordingSink()
    loop = EngineLoop(TinyEngine, sink, RecordingEvents(), FakeClock(), prefix_cache(), StepLimits(8, GRID, GRID), 100)
    loop.start()
    try:
        loop.load(ModelSource(ModelId(name), "tiny")).result(WAIT_S)
        loop.reserve()
        loop.submit(submission(name, "alone", prompts[0], num_tokens[0]))
        alone = _tokens(sink, "alone")
        for index, prompt in enumerate(prompts):  # shorter ones leave and later ones join while others run
            loop.reserve()
            loop.submit(submission(name, str(index), prompt, num_tokens[index]))
        crowded = [_tokens(sink, str(index)) for index in range(len(prompts))]
    finally:
        assert loop.stop(WAIT_S)
    network = build(name)
    expected = [plain_greedy(network, prompt, count) for prompt, count in zip(prompts, num_tokens, strict=True)]
    assert alone == expected[0]
    assert crowded == expected


def _tokens(sink: RecordingSink, id: str) -> list[int]:
    items = sink.wait_for_end(RequestId(id), WAIT_S)
    return [token for item in items if isinstance(item, TextDelta) for token in item.token_ids]
