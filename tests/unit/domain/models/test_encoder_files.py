"""Encoders by the files of models as their publishers leave them: what they are for, and what is not computed."""

import re
from dataclasses import replace
from typing import Any

import pytest

from domain.models.capability import PLAIN_USE, Capability, ModelUse, Pooling
from domain.models.model_files import ModelFiles, use_of

_BERT = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 384, "max_position_embeddings": 512}
_XLMR = {
    **{"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "hidden_size": 1024, "pad_token_id": 1},
    "max_position_embeddings": 8194,
}
_MODERN = {
    **{"model_type": "modernbert", "architectures": ["ModernBertModel"], "hidden_size": 768, "num_hidden_layers": 4},
    "max_position_embeddings": 8192,
}
_MODERN_5 = {
    **_MODERN,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 160_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
"""As transformers 5 writes it."""
_SCORES = {**_BERT, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
_MEAN, _CLS = {"pooling_mode_mean_tokens": True}, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [{"type": f"sentence_transformers.models.{kind}"} for kind in kinds]


_SENTENCE = modules("Transformer", "Pooling", "Normalize")
_EMBEDS = ModelUse(frozenset({Capability.EMBED}), Pooling(is_mean=True), 384, 384, max_tokens=512, is_encoder=True)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (ModelFiles("sentence-transformers/all-MiniLM-L6-v2", _BERT, _SENTENCE, _MEAN), _EMBEDS),
        (
            ModelFiles("m", _BERT, _SENTENCE, _MEAN, transformer={"max_seq_length": 256, "do_lower_case": False}),
            replace(_EMBEDS, max_tokens=256),
        ),
        (
            ModelFiles("m", _BERT, modules("Transformer", "Pooling"), _CLS),
            replace(_EMBEDS, pooling=Pooling(is_first=True, is_normalized=False)),
        ),
        (
            ModelFiles("m", _BERT, _SENTENCE, _MEAN, {"prompts": {"q": "query: "}, "default_prompt_name": "q"}),
            replace(_EMBEDS, prompt="query: "),
        ),
        (
            ModelFiles("m", _XLMR, _SENTENCE, {"pooling_mode": "cls"}),
            replace(_EMBEDS, pooling=Pooling(is_first=True), size=1024, least=1024, max_tokens=8192),
        ),
        (
            ModelFiles("m", {**_XLMR, "model_type": "roberta", "max_position_embeddings": 514}, _SENTENCE, _MEAN),
            replace(_EMBEDS, size=1024, least=1024),
        ),
        (ModelFiles("m", {**_BERT, "architectures": ["BertForMaskedLM"]}, _SENTENCE, _MEAN), _EMBEDS),
        *(
            (ModelFiles("m", config, _SENTENCE, _MEAN), replace(_EMBEDS, size=768, least=768, max_tokens=8192))
            for config in (_MODERN, _MODERN_5)
        ),
    ],
)
def test_an_embedder_by_its_files(files: ModelFiles, expected: ModelUse) -> None:
    assert use_of(files) == expected


@pytest.mark.parametrize(
    ("name", "is_first"),
    [
        ("mlx-community/all-MiniLM-L6-v2-4bit", False),
        ("intfloat/multilingual-e5-small", False),
        ("thenlper/gte-small", False),
        ("mlx-community/bge-small-en-v1.5-8bit", True),
        ("mlx-community/bge-m3-mlx-fp16", True),
        ("mlx-community/mxbai-embed-large-v1", True),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", True),
    ],
)
def test_a_conversion_without_a_pooling_module_is_pooled_by_its_name(name: str, is_first: bool) -> None:
    assert use_of(ModelFiles(name, _BERT)).pooling == Pooling(is_mean=not is_first, is_first=is_first)


@pytest.mark.parametrize(
    "config", [_SCORES, {**_SCORES, "id2label": None}, {**_SCORES, "num_labels": 1, "id2label": {}}]
)
def test_a_cross_encoder_scores(config: dict[str, Any]) -> None:
    expected = ModelUse(frozenset({Capability.SCORE}), max_tokens=512, is_encoder=True)
    assert use_of(ModelFiles("cross-encoder/ms-marco-MiniLM-L6-v2", config)) == expected
    assert use_of(ModelFiles("m", config), Capability.SCORE) == expected


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (ModelFiles("own", _BERT), "nothing says how it is pooled"),
        (ModelFiles("own", _BERT, _SENTENCE), "nothing says how it is pooled"),
        (ModelFiles("own", _BERT, _SENTENCE, {"pooling_mode_max_tokens": True}), "mode max_tokens"),
        (ModelFiles("own", _BERT, _SENTENCE, {**_MEAN, "pooling_mode_cls_token": True}), "mode cls_token, mean_tokens"),
        (ModelFiles("own", _BERT, modules("Transformer", "Pooling", "Dense"), _MEAN), "does not compute: Dense"),
        (ModelFiles("own", _SCORES, modules("Transformer", "Dense")), "does not compute: Dense"),
        (ModelFiles("own", {**_BERT, "hidden_act": "gelu_new"}, _SENTENCE, _MEAN), "activation is gelu_new"),
        (ModelFiles("own", {**_BERT, "position_embedding_type": "alibi"}, _SENTENCE, _MEAN), "position_embedding_type"),
        (ModelFiles("own", {**_BERT, "is_decoder": True}, _SENTENCE, _MEAN), "is_decoder"),
        (ModelFiles("own", {**_BERT, "auto_map": {"AutoModel": "x.Y"}}, _SENTENCE, _MEAN), "Python code"),
        (ModelFiles("own", {**_XLMR, "max_position_embeddings": None}, _SENTENCE, _MEAN), "max_position_embeddings"),
        (ModelFiles("own", _BERT, _SENTENCE, _MEAN, transformer={"do_lower_case": True}), "do_lower_case"),
        (ModelFiles("own", {**_SCORES, "id2label": {"0": "no", "1": "yes"}}), "it has 2 labels"),
        (ModelFiles("own", {**_SCORES, "num_labels": 3}), "it has 3 labels"),
        (ModelFiles("own", {**_BERT, "architectures": ["BertForTokenClassification"]}), "neither vectors nor scores"),
        (ModelFiles("own", {**_MODERN, "hidden_activation": "silu"}, _SENTENCE, _MEAN), "activation is silu"),
        (ModelFiles("own", {**_MODERN, "layer_types": ["full_attention"] * 4}, _SENTENCE, _MEAN), "layer_types"),
        (ModelFiles("own", {**_MODERN, "rope_scaling": {"type": "yarn"}}, _SENTENCE, _MEAN), "rope_scaling"),
        (ModelFiles("own", {**_MODERN_5, "global_rope_theta": 9.0}, _SENTENCE, _MEAN), "rope_theta of 9"),
        (
            ModelFiles(
                "own", {**_MODERN, "rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, _SENTENCE, _MEAN
            ),
            "rope_parameters for full_attention",
        ),
    ],
)
def test_an_encoder_that_would_give_other_numbers_is_refused(files: ModelFiles, reason: str) -> None:
    assert re.search(reason, use_of(files).refusal)


def test_a_setting_does_not_change_what_an_encoder_can_do() -> None:
    files = ModelFiles("own", _BERT, _SENTENCE, _MEAN)
    assert use_of(files, Capability.EMBED) == use_of(files)
    assert "can embed only" in use_of(files, Capability.SCORE).refusal
    assert use_of(files, Capability.GENERATE) == PLAIN_USE
