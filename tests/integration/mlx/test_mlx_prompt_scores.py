"""Scores of a prompt on MLX are the log softmax of one plain forward pass, and never all of it in float32 at once."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from adapters.mlx.caches.leaves import new_caches
from adapters.mlx.sampling import sampled
from adapters.mlx.sampling.sampled import score_chunk
from application.ports.compute import DecodeStart, PromptScores
from domain.request.sampling import SamplingParams
from tests.support.mlx.tiny_models import build, tiny_model
from tests.support.stores.state_replay import new_id, prompt_of

PROMPT = prompt_of(150)
CUTS = (32, 64, 96, 128, len(PROMPT))
NUM_TOPS = 5


def log_softmax(network: Any, tokens: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """[tokens, vocab] of one pass over all of them."""
    logits = network(mx.array([tokens]), cache=new_caches(network))[0].astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def check_scores(found: PromptScores, normal: np.ndarray[Any, Any], tokens: tuple[int, ...], tolerance: float) -> None:
    assert found[0] is None
    for row, score in enumerate(found[1:]):
        assert score is not None
        assert score.token_id == tokens[row + 1]
        assert score.logprob == pytest.approx(normal[row][score.token_id], abs=tolerance)
        at_least, at_most = (1 + (normal[row] > score.logprob + by).sum() for by in (tolerance, -tolerance))
        assert at_least <= (score.rank or 0) <= at_most
        ranked = sorted(normal[row], reverse=True)[:NUM_TOPS]
        assert [value for _, value in score.top] == pytest.approx(ranked, abs=tolerance)
        assert [normal[row][token] for token, _ in score.top] == pytest.approx(ranked, abs=tolerance)


@pytest.mark.parametrize(
    ("name", "slice_bytes"), [("gemma3n", sampled.SLICE_BYTES), ("llama", 1), ("llama", 7 * 4 * 256)]
)
@pytest.mark.exact
def test_scores_are_the_log_softmax_of_a_plain_pass(
    name: str, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled, "SLICE_BYTES", slice_bytes)
    model, id = tiny_model(name), new_id()
    model.open(id)
    found, at = list[Any](), 0
    for cut in CUTS[:-1]:
        found += model.prefill(id, PROMPT[at:cut], num_prompt_logprobs=NUM_TOPS)
        at = cut
    start = DecodeStart(PROMPT, SamplingParams(temperature=0), seed=1)
    found += model.start_decode(id, PROMPT[at:], start, num_prompt_logprobs=NUM_TOPS)
    model.close([id])
    check_scores(found, log_softmax(build(name), PROMPT), PROMPT, 2e-4)


def test_half_precision_logits_are_scored_in_float32() -> None:
    """The sum over a vocabulary in bfloat16 would be off by more than this."""
    network, model, id = build("llama", mx.bfloat16), tiny_model("llama", mx.bfloat16), new_id()
    model.open(id)
    found = model.prefill(id, PROMPT[:64], num_prompt_logprobs=NUM_TOPS)
    model.close([id])
    logits = network(mx.array([PROMPT[:64]]))[0]
    assert logits.dtype == mx.bfloat16
    check_scores(found, log_softmax(network, PROMPT[:64]), PROMPT[:64], 1e-5)


def test_a_chunk_is_never_in_float32_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    num_tokens, vocab_size, slice_bytes = 256, 50_000, 1 << 20
    monkeypatch.setattr(sampled, "SLICE_BYTES", slice_bytes)
    logits = mx.random.normal((num_tokens, vocab_size), dtype=mx.bfloat16)
    mx.eval(logits)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    scores, last = score_chunk(logits, tuple(range(num_tokens)), None, 3)
    assert len(scores) == num_tokens
    assert mx.get_peak_memory() - before < 8 * slice_bytes < 4 * num_tokens * vocab_size / 4
    assert mx.get_active_memory() - before < 2 * last.nbytes
