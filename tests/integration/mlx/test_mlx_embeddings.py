"""Vectors and scores of models as they lie in folders, against a pass and a pooling written out here."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from adapters.huggingface.repository import HuggingFaceRepository
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading.files import check_source
from adapters.mlx.model import MlxModel
from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import Tokenizer
from domain.errors import ModelLoadFailed
from domain.ids import ModelId, SequenceId
from domain.models.capability import Capability, PoolingProfile
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.pooling import Pooling
from domain.request.rerank import PREFIX, SUFFIX
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_embedders import embedder_folder, reranker_folder, trunk_states
from tests.support.mlx.tiny_models import build, config_of

ID = SequenceId(1)
TEXTS = ("The quick brown fox", "naïve café über straße, don't stop! " * 12, "x", "Alice 48213\n\nand lines")
CHUNK = 64

Numbers = NDArray[np.float32]


class Loaded:
    """A model with its tokenizer, found and loaded as a server does."""

    def __init__(self, folder: Path) -> None:
        found = HuggingFaceRepository([], paths=[str(folder)], cache=folder / "no cache").find(ModelId(str(folder)))
        assert found is not None
        self.source: ModelSource = found
        self.tokenizer: Tokenizer = HfTokenizerLoader().load(found)
        self.pooling = found.pooling or PoolingProfile()
        if Capability.SCORE in found.capabilities:
            self.pooling = PoolingProfile(score_ids=self.tokenizer.score_ids)
        options = LoadOptions(pooling=self.pooling)
        check_source(found, options)
        self.model = finish_load(MlxEngine().load(found, options))
        assert isinstance(self.model, MlxModel)

    def pool(self, prompt: list[int], rows: list[list[int]], pooling: Pooling) -> list[Numbers]:
        self.model.open(ID)
        for start in range(0, len(prompt), CHUNK):
            self.model.prefill(ID, prompt[start : start + CHUNK])
        found = self.model.pool(ID, rows, pooling)
        self.model.close([ID])
        return [np.frombuffer(row, "<f4") for row in found]

    def embed(self, text: str, num_row: int | None = 1) -> Numbers:
        """`num_row`: tokens behind the prompt; None for all."""
        ids = list(self.tokenizer.encode(text).token_ids)
        cut = 0 if num_row is None else len(ids) - num_row
        (found,) = self.pool(ids[:cut], [ids[cut:]], Pooling(Capability.EMBED))
        return found


def last_token(states: Numbers) -> Numbers:
    return states[-1]


def mean(states: Numbers) -> Numbers:
    return states.mean(axis=0)


@pytest.mark.parametrize(
    ("family", "model_type", "mode", "is_bare"),
    [
        ("qwen3", "", "lasttoken", True),
        ("llama", "mistral", "lasttoken", True),
        ("llama", "", "mean_tokens", True),
        ("gemma2", "", "lasttoken", True),
        ("gemma3_text", "", "mean_tokens", True),
        ("falcon_h1", "", "lasttoken", False),
        ("qwen3_next", "", "lasttoken", False),
        ("qwen3_5", "", "lasttoken", False),
    ],
)
@pytest.mark.parametrize("is_normalized", [True, False])
def test_vectors_are_those_of_the_documented_pooling(
    tmp_path: Path, family: str, model_type: str, mode: str, is_bare: bool, is_normalized: bool
) -> None:
    folder = embedder_folder(
        tmp_path / "m", family, model_type=model_type, mode=mode, is_bare=is_bare, is_normalized=is_normalized
    )
    loaded = Loaded(folder)
    pool: Callable[[Numbers], Numbers] = mean if mode == "mean_tokens" else last_token
    for text in TEXTS:
        ids = loaded.tokenizer.encode(text).token_ids
        assert loaded.tokenizer.decode(ids) == f"{text}<|endoftext|>"
        expected = pool(np.array(trunk_states(folder, family, ids).astype(mx.float32)))
        found = loaded.embed(text, None if mode == "mean_tokens" else 1)
        length = float(np.linalg.norm(expected))
        assert float(found @ expected) / (length * float(np.linalg.norm(found))) >= 0.9999
        assert float(np.linalg.norm(found)) == pytest.approx(1 if is_normalized else length, rel=1e-4)


def test_a_score_is_the_probability_of_yes_against_no(tmp_path: Path) -> None:
    folder = reranker_folder(tmp_path / "Qwen3-Reranker-tiny")
    loaded = Loaded(folder)
    documents = ["The code of Alice is 48213.", "no", "Hello there " * 30]
    pairs = loaded.tokenizer.encode_pairs("What is the code?", documents)
    rows = [[*document, *pairs.suffix] for document in pairs.documents]
    found = loaded.pool(list(pairs.prefix), rows, Pooling(Capability.SCORE))
    assert loaded.pooling.score_ids is not None
    yes, no = loaded.pooling.score_ids
    network = build("qwen3", vocab_size=loaded.tokenizer.vocab_size, tie_word_embeddings=True)
    for document, row, score in zip(documents, rows, found, strict=True):
        ids = [*pairs.prefix, *row]
        text = loaded.tokenizer.decode(ids)
        assert text.startswith(PREFIX)
        assert text.endswith(f"\n<Query>: What is the code?\n<Document>: {document}{SUFFIX}")
        logits = network(mx.array([ids]))[0, -1]
        expected = 1 / (1 + np.exp((logits[no] - logits[yes]).item()))
        np.testing.assert_allclose(score, [expected], atol=1e-5)


def test_a_bare_trunk_loads_only_where_it_embeds(tmp_path: Path) -> None:
    folder = embedder_folder(tmp_path / "m")
    with pytest.raises(ModelLoadFailed, match="lm_head"):
        finish_load(MlxEngine().load(ModelSource(ModelId("m"), str(folder)), LoadOptions()))
    embeds = finish_load(
        MlxEngine().load(ModelSource(ModelId("m"), str(folder)), LoadOptions(pooling=PoolingProfile()))
    )
    assert embeds.description.embedding_size == config_of("qwen3")["hidden_size"]


@pytest.mark.parametrize(
    ("family", "model_type", "changes", "most"),
    [
        ("llama", "mistral", {"sliding_window": 40}, 40),
        ("llama", "mistral", {"sliding_window": None}, 4096),
        ("llama", "", {"sliding_window": 40}, 4096),
        ("qwen3", "", {"sliding_window": 40, "use_sliding_window": True}, 40),
        ("qwen3", "", {"sliding_window": 40, "use_sliding_window": False}, 4096),
    ],
)
def test_texts_beyond_a_window_that_is_not_computed_are_not_taken(
    tmp_path: Path, family: str, model_type: str, changes: dict[str, Any], most: int
) -> None:
    folder = embedder_folder(tmp_path / "m", family, model_type=model_type, **changes)
    assert Loaded(folder).model.description.context_length == most


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


@pytest.mark.parametrize("family", ["cohere", "minicpm", "gpt2"])
def test_a_family_whose_hidden_states_are_elsewhere_is_refused(tmp_path: Path, family: str) -> None:
    folder = embedder_folder(tmp_path / "m", family, is_bare=False)
    with pytest.raises(ModelLoadFailed, match=rf"\({family}\) cannot embed or score: (its hidden|the output)"):
        Loaded(folder)
