"""Vectors and scores of encoders as they lie in folders, against a pass and a pooling in NumPy."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import tokenizers

from adapters.mlx.loading import files
from adapters.mlx.loading.plan import check_source, plan_model
from adapters.mlx.memory import begin_peak, peak_bytes
from adapters.mlx.runtime.device import on_cpu
from application.services.text_side.answers.text_groups import encode_texts
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow, ModelLoadFailed
from domain.id_row import IdRow
from domain.models.capability import PLAIN_USE, Capability
from domain.models.model_card import LoadOptions
from domain.request.pooling import PooledPrompt
from tests.support.effort import some_of
from tests.support.mlx.encoder_reference import Reference
from tests.support.mlx.pooled_models import Loaded, source_of
from tests.support.mlx.tiny_encoders import FAMILIES, encoder_folder, write

LENGTHS = (7, 33, 150)
QUERY, DOCUMENTS = "What is the code of Alice?", ("The code of Alice is 48213.", "no", "Hello there, how are you? " * 5)


def texts_of(loaded: Loaded) -> list[list[int]]:
    """Token ids of these lengths, between those that begin and end each text."""
    start, end = loaded.tokenizer.ends
    size = loaded.tokenizer.vocab_size - 10
    return [[*start, *((17 * at + length) % size + 8 for at in range(length - 2)), *end] for length in LENGTHS]


def rows_of(loaded: Loaded, prompt: PooledPrompt) -> list[list[int]]:
    """The rows of a request, in the order of its texts."""
    served = ServedModel(loaded.source, loaded.tokenizer, loaded.model.description, "")
    _, groups, _ = encode_texts(prompt, served, "")
    (group,) = groups
    assert len(group.prompt) == 0
    found = {place: [*row] for row, places in zip(group.rows, group.places, strict=True) for place in places}
    return [found[at] for at in range(len(prompt.texts))]


def length_one(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(
    ("model_type", "mode", "is_normalized"),
    [
        ("bert", "mean_tokens", True),
        ("xlm-roberta", "cls_token", True),
        ("roberta", "mean_tokens", False),
        ("modernbert", "cls_token", False),
    ],
)
@pytest.mark.exact
def test_vectors_are_those_of_the_published_network(
    tmp_path: Path, model_type: str, mode: str, is_normalized: bool
) -> None:
    folder = encoder_folder(tmp_path / "m", model_type, mode=mode, is_normalized=is_normalized)
    loaded, reference = Loaded(folder), Reference(folder)
    texts = texts_of(loaded)
    states = [reference.states(ids) for ids in texts]
    expected = [one[0] if mode == "cls_token" else one.mean(axis=0) for one in states]
    expected = [length_one(one) if is_normalized else one for one in expected]
    together = loaded.pool([], texts, loaded.source.use.pooling)
    for text, own, beside in zip(texts, expected, together, strict=True):
        (alone,) = loaded.pool([], [text], loaded.source.use.pooling)
        np.testing.assert_allclose(alone, own, atol=1e-5)
        np.testing.assert_allclose(beside, own, atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "config"),
    [*((one, {}) for one in (*FAMILIES, "roberta")), ("modernbert", {"classifier_pooling": "mean"})],
)
@pytest.mark.exact
def test_a_score_is_the_sigmoid_of_the_head_for_the_pair_as_the_tokenizer_joins_it(
    tmp_path: Path, model_type: str, config: dict[str, Any]
) -> None:
    folder = encoder_folder(tmp_path / "m", model_type, scores=True, **config)
    loaded, reference = Loaded(folder), Reference(folder)
    assert loaded.source.use.capabilities == {Capability.SCORE}
    rows = rows_of(loaded, PooledPrompt(DOCUMENTS, QUERY))
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    pairs = [library.encode(QUERY, document) for document in DOCUMENTS]
    assert rows == [pair.ids for pair in pairs]
    types = [pair.type_ids if model_type == "bert" else None for pair in pairs]
    outputs = np.array([reference.output(*pair) for pair in zip(rows, types, strict=True)])
    assert np.ptp(outputs) > 0.01
    found = np.concatenate(loaded.pool([], rows, loaded.source.use.pooling))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-outputs)), atol=1e-5)
    alone = [loaded.pool([], [row], loaded.source.use.pooling)[0] for row in rows]
    np.testing.assert_allclose(np.concatenate(alone), found, atol=1e-5)


def test_text_that_spells_a_separator_is_text(tmp_path: Path) -> None:
    loaded = Loaded(encoder_folder(tmp_path / "m", scores=True))
    separator = loaded.tokenizer.special_tokens["[SEP]"]
    (row,) = rows_of(loaded, PooledPrompt(("a [SEP] b",), "c [SEP] d"))
    assert row.count(separator) == 2
    assert loaded.tokenizer.note == ""  # what it does not know is [UNK], which is no risk


def test_a_text_longer_than_the_tokenizers_own_limit_is_whole(tmp_path: Path) -> None:
    loaded = Loaded(encoder_folder(tmp_path / "m"))
    (row,) = rows_of(loaded, PooledPrompt(("the fox " * 70,)))
    assert len(row) == 142


@pytest.mark.exact
@pytest.mark.parametrize("model_type", [*FAMILIES])
def test_a_text_takes_as_many_tokens_as_there_are_positions(tmp_path: Path, model_type: str) -> None:
    loaded = Loaded(encoder_folder(tmp_path / "m", model_type))
    assert (loaded.model.description.context_length, loaded.source.use.max_tokens) == (160, 160)
    (start,), (end,) = loaded.tokenizer.ends
    longest = [start, *[9] * 158, end]
    (found,) = loaded.pool([], [longest], loaded.source.use.pooling)
    expected = length_one(Reference(tmp_path / "m").states(longest).mean(axis=0))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ContextOverflow, match=r"^input\[0\] has 161 tokens, and .* takes 160"):
        rows_of(loaded, PooledPrompt((IdRow([start, *[9] * 159, end]),)))


def test_a_limit_of_the_files_is_kept(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "m")
    write(folder / "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    loaded = Loaded(folder, LoadOptions(context_length=100))
    with pytest.raises(ContextOverflow, match="takes 40"):
        rows_of(loaded, PooledPrompt(("the fox " * 40,)))
    (cut,) = rows_of(loaded, PooledPrompt(("the fox " * 40,), truncates=True))
    assert (len(cut), cut[-1]) == (40, loaded.tokenizer.special_tokens["[SEP]"])


@pytest.mark.parametrize(
    ("model_type", "dtype"), [("bert", "float16"), ("xlm-roberta", "bfloat16"), ("modernbert", "bfloat16")]
)
def test_half_precision_is_near_and_finite_beside_much_padding(tmp_path: Path, model_type: str, dtype: str) -> None:
    loaded = Loaded(encoder_folder(tmp_path / "m", model_type), LoadOptions(dtype))
    assert loaded.model.description.dtype == dtype
    texts, reference = texts_of(loaded), Reference(tmp_path / "m")
    for ids, found in zip(texts, loaded.pool([], texts, loaded.source.use.pooling), strict=True):
        assert float(found @ length_one(reference.states(ids).mean(axis=0))) > 0.99


def test_weights_in_half_precision_are_computed_in_float32_on_a_cpu(tmp_path: Path) -> None:
    loaded = Loaded(encoder_folder(tmp_path / "m", dtype=mx.float16))
    if on_cpu():
        assert loaded.model.description.dtype == "float32"
        assert loaded.model.description.weight_bytes == loaded.preview.weight_bytes - 4 * 64 * 64  # the pooler


def test_a_quantised_encoder_is_near_the_whole_one(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "m")
    whole = Loaded(folder).embed("the quick fox")
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    packed: dict[str, mx.array] = {}
    for name, weight in weights.items():
        packed[name] = weight
        if weight.ndim == 2:
            base = name.removesuffix(".weight")
            packed[name], packed[f"{base}.scales"], packed[f"{base}.biases"] = mx.quantize(weight, 32, 8)
    mx.save_safetensors(str(folder / "model.safetensors"), packed, metadata={"format": "mlx"})
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "quantization": {"group_size": 32, "bits": 8}})
    assert float(Loaded(folder).embed("the quick fox") @ whole) >= 0.999


def test_old_names_of_norms_are_read(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "m")
    whole = Loaded(folder).embed("the quick fox")
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {
        next((name.replace(now, then) for now, then in old.items() if name.endswith(now)), name): value
        for name, value in weights.items()
    }
    assert renamed.keys() != weights.keys()
    mx.save_safetensors(str(folder / "model.safetensors"), renamed)
    np.testing.assert_array_equal(Loaded(folder).embed("the quick fox"), whole)


@pytest.mark.parametrize(
    ("model_type", "config", "message"),
    [
        ("bert", {"intermediate_size": 95}, "Expected shape"),
        ("bert", {"num_hidden_layers": 4}, r"encoder\.layer\.3"),
        ("modernbert", {"classifier_pooling": "max"}, "Unsupported ModernBERT classifier pooling"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, model_type: str, config: dict[str, Any], message: str
) -> None:
    folder = encoder_folder(tmp_path / "m", model_type, scores=model_type == "modernbert")
    write(folder / "config.json", json.loads((folder / "config.json").read_text()) | config)
    with pytest.raises(ModelLoadFailed, match=message):
        Loaded(folder)


def test_what_an_encoder_cannot_do_is_refused(tmp_path: Path) -> None:
    source = Loaded(encoder_folder(tmp_path / "m")).source
    with pytest.raises(ModelLoadFailed, match="is an encoder, which takes no adapter"):
        check_source(replace(source, adapter=str(tmp_path)), LoadOptions())
    with pytest.raises(ModelLoadFailed, match="'bert' are not served: it gives vectors, not answers"):
        check_source(replace(source, use=PLAIN_USE), LoadOptions())


def test_without_mlx_vlm_the_check_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(encoder_folder(tmp_path / "m"))
    monkeypatch.setattr(files, "missing", lambda: "mlx-vlm is not installed: pip install it")
    with pytest.raises(ModelLoadFailed, match="encoders are computed by mlx-vlm: mlx-vlm is not installed"):
        check_source(source, LoadOptions())


@pytest.mark.parametrize("model_type", [*FAMILIES])
def test_a_plan_counts_weights_and_the_scores_of_the_longest_text(tmp_path: Path, model_type: str) -> None:
    loaded = Loaded(encoder_folder(tmp_path / "m", model_type))
    planned = plan_model(loaded.source, LoadOptions())
    assert planned.memory == loaded.model.description.memory
    assert (planned.context_length, planned.layout.layers) == (160, ())
    short, long = (planned.memory.peak_bytes(length, length) for length in (80, 160))
    assert long > 2 * short


@pytest.mark.parametrize("model_type", some_of(FAMILIES, {"bert", "modernbert"}))
def test_a_pass_takes_no_more_than_what_is_charged(tmp_path: Path, model_type: str) -> None:
    positions = 1202 if "roberta" in model_type else 1200
    loaded = Loaded(encoder_folder(tmp_path / "m", model_type, max_position_embeddings=positions))
    for count, length in ((1, 1200), (3, 380), (30, 40)):
        begin_peak()
        loaded.pool([], [[9] * length] * count, loaded.source.use.pooling)
        peak, charged = peak_bytes(), loaded.model.description.memory.peak_bytes(count * length, count * length)
        assert peak < charged
        assert count > 1 or charged < 8 * peak  # rows beside each other count as one long one
