"""Vectors and scores of models as they lie in folders, against a pass and a pooling written out here."""

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from adapters.mlx.engine import MlxEngine
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.capability import Capability, ModelUse, Pooling
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.rerank import PREFIX, SUFFIX, query_text
from tests.support.effort import some_of
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.pooled_models import Loaded, Numbers
from tests.support.mlx.tiny_embedders import embedder_folder, reranker_folder, trunk_states
from tests.support.mlx.tiny_models import build

TEXTS = ("The quick brown fox", "naïve café über straße, don't stop! " * 12, "x", "Alice 48213\n\nand lines")


def last_token(states: Numbers) -> Numbers:
    return states[-1]


def mean(states: Numbers) -> Numbers:
    return states.mean(axis=0)


@pytest.mark.parametrize(
    ("family", "model_type", "mode", "is_bare", "is_normalized"),
    [
        *some_of(
            [
                ("qwen3", "", "lasttoken", True, True),
                ("llama", "", "mean_tokens", True, True),
                ("gemma2", "", "lasttoken", True, False),
                ("qwen3_next", "", "lasttoken", False, True),
            ],
            (),
        ),
        ("llama", "mistral", "lasttoken", True, False),
        ("gemma3_text", "", "mean_tokens", True, True),
        ("falcon_h1", "", "lasttoken", False, False),
        ("qwen3_5", "", "lasttoken", False, False),
    ],
)
def test_vectors_are_those_of_the_documented_pooling(
    tmp_path: Path, family: str, model_type: str, mode: str, is_bare: bool, is_normalized: bool
) -> None:
    folder = embedder_folder(
        tmp_path / "m", family, model_type=model_type, mode=mode, is_bare=is_bare, is_normalized=is_normalized
    )
    loaded = Loaded(folder)
    pool: Callable[[Numbers], Numbers] = mean if mode == "mean_tokens" else last_token
    for text in TEXTS:
        ids = loaded.ids(text)
        assert loaded.tokenizer.decode(ids) == f"{text}<|endoftext|>"
        expected = pool(np.array(trunk_states(folder, family, ids).astype(mx.float32)))
        found = loaded.embed(text)
        length = float(np.linalg.norm(expected))
        assert float(found @ expected) / (length * float(np.linalg.norm(found))) >= 0.9999
        assert float(np.linalg.norm(found)) == pytest.approx(1 if is_normalized else length, rel=1e-4)


@pytest.mark.exact
def test_a_score_is_the_probability_of_yes_against_no(tmp_path: Path) -> None:
    folder = reranker_folder(tmp_path / "Qwen3-Reranker-tiny")
    loaded = Loaded(folder)
    documents = ["The code of Alice is 48213.", "no", "Hello there " * 30]
    encode, (start, end) = loaded.tokenizer.encode_part, loaded.tokenizer.ends
    prompt = [*start, *encode(query_text("What is the code?", None))]
    rows = [[*encode(f" {document}"), *end] for document in documents]
    (yes,), (no,) = encode("yes"), encode("no")
    found = loaded.pool(prompt, rows, Pooling(score_ids=(yes, no)))
    network = build("qwen3", vocab_size=loaded.tokenizer.vocab_size, tie_word_embeddings=True)
    for document, row, score in zip(documents, rows, found, strict=True):
        ids = [*prompt, *row]
        text = loaded.tokenizer.decode(ids)
        assert text.startswith(PREFIX)
        assert text.endswith(f"\n<Query>: What is the code?\n<Document>: {document}{SUFFIX}")
        logits = network(mx.array([ids]))[0, -1]
        expected = 1 / (1 + np.exp((logits[no] - logits[yes]).item()))
        np.testing.assert_allclose(score, [expected], atol=1e-5)


def test_a_bare_trunk_loads_only_where_it_embeds(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path / "m")
    with pytest.raises(ModelLoadFailed, match="parameters not in model"):
        finish_load(MlxEngine().load(ModelSource(ModelId("m"), str(folder)), LoadOptions()))
    finish_load(
        MlxEngine().load(
            ModelSource(ModelId("m"), str(folder), use=ModelUse(frozenset({Capability.EMBED}))), LoadOptions()
        )
    )


def test_a_quantised_trunk_embeds_as_it_would_dequantised(tmp_path: Path) -> None:
    """The vectors stay near those of the full weights: the scales were read, under the names without a prefix."""
    folder = embedder_folder(tmp_path / "m")
    whole = Loaded(folder).embed(TEXTS[0])
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    packed: dict[str, mx.array] = {}
    for name, weight in weights.items():
        if weight.ndim == 1:
            packed[name] = weight
            continue
        base = name.removesuffix(".weight")
        packed[name], packed[f"{base}.scales"], packed[f"{base}.biases"] = mx.quantize(weight, 32, 8)
    mx.save_safetensors(str(folder / "model.safetensors"), packed, metadata={"format": "mlx"})
    config = (folder / "config.json").read_text().replace("{", '{"quantization": {"group_size": 32, "bits": 8}, ', 1)
    (folder / "config.json").write_text(config)
    assert float(Loaded(folder).embed(TEXTS[0]) @ whole) >= 0.999


@pytest.mark.parametrize("family", ["cohere", "gpt2"])
def test_a_family_whose_hidden_states_are_elsewhere_is_refused(tmp_path: Path, family: str) -> None:
    folder = embedder_folder(tmp_path / "m", family, is_bare=False)
    with pytest.raises(ModelLoadFailed, match=f"{family} cannot embed or score, its hidden states are elsewhere"):
        Loaded(folder)
