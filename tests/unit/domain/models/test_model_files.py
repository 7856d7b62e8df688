"""The requests that a model answers, by the files of models as their publishers leave them."""

import re
from dataclasses import replace
from typing import Any

import pytest

from domain.models.capability import GENERATES, MAX_ROW, PLAIN_USE, Capability, ModelUse, Pooling
from domain.models.model_files import ModelFiles, use_of
from domain.models.rerank import PREFIX, SUFFIX

_EMBEDS = ModelUse(frozenset({Capability.EMBED}))
_SCORES = ModelUse(frozenset({Capability.SCORE}), start=PREFIX, end=SUFFIX)
_MEAN = Pooling(is_mean=True)
_QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 1024}
_MISTRAL = {"model_type": "mistral", "architectures": ["MistralModel"], "hidden_size": 4096}
_QUERY = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def modules(*kinds: str) -> list[dict[str, Any]]:
    """A modules.json as sentence-transformers writes it."""
    return [{"idx": at, "type": f"sentence_transformers.models.{kind}"} for at, kind in enumerate(kinds)]


def pooled_by(mode: str, **more: Any) -> dict[str, Any]:
    """The configuration of a Pooling module in its older form, with all its switches."""
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": 64, **{f"pooling_mode_{one}": one == mode for one in modes}, **more}


_SENTENCE = modules("Transformer", "Pooling", "Normalize")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-Embedding-0.6B", "mlx-community/Qwen3-Embedding-0.6B-4bit-DWQ"])
def test_qwen3_embedding_with_its_files_and_without(name: str) -> None:
    expected = ModelUse(frozenset({Capability.EMBED}), size=1024, least=32, end="<|endoftext|>")
    assert use_of(ModelFiles(name, _QWEN3)) == expected
    sentences = {"prompts": {"query": _QUERY, "document": ""}, "default_prompt_name": None}
    assert use_of(ModelFiles(name, _QWEN3, _SENTENCE, pooled_by("lasttoken"), sentences)) == expected


@pytest.mark.parametrize(
    "name", ["intfloat/e5-mistral-7b-instruct", "Linq-AI-Research/Linq-Embed-Mistral", "x/SFR-Embedding-2_R-8bit"]
)
def test_mistrals_that_embed_end_with_their_end_token_and_are_not_cut(name: str) -> None:
    assert use_of(ModelFiles(name, _MISTRAL)) == replace(_EMBEDS, size=4096, least=4096, end="</s>")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen2", "architectures": ["Qwen2Model"]},
        {"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]},
    ],
)
def test_an_architecture_without_a_head_embeds_by_the_last_token(config: dict[str, Any]) -> None:
    assert use_of(ModelFiles("own", config)) == _EMBEDS


@pytest.mark.parametrize(
    ("pooling", "kinds", "expected"),
    [
        (pooled_by("mean_tokens"), ("Transformer", "Pooling"), Pooling(is_mean=True, is_normalized=False)),
        ({"pooling_mode": "lasttoken"}, ("Transformer", "Pooling", "Normalize"), Pooling()),
        ({"pooling_mode": "mean"}, ("Transformer", "Pooling", "Normalize"), _MEAN),
    ],
)
def test_the_pooling_module_decides(pooling: dict[str, Any], kinds: tuple[str, ...], expected: Pooling) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    use = use_of(ModelFiles("own", config, modules(*kinds), pooling))
    assert use == replace(_EMBEDS, pooling=expected, max_tokens=MAX_ROW if expected.is_mean else None)


@pytest.mark.parametrize(
    ("config", "least"),
    [
        ({"matryoshka_dimensions": [512, 128, 64]}, 64),
        ({"is_matryoshka": True}, 1),
        ({"matryoshka_dimensions": "all"}, 4096),
    ],
)
def test_shorter_vectors_where_the_configuration_names_them(config: dict[str, Any], least: int) -> None:
    use = use_of(ModelFiles("own", {**_MISTRAL, **config}))
    assert (use.least, use.size) == (least, 4096)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"model_type": "mistral", "sliding_window": 40}, 40),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "llama", "sliding_window": 40}, None),
        ({"model_type": "qwen3", "sliding_window": 40, "use_sliding_window": True}, 40),
        ({"model_type": "qwen3", "sliding_window": 40, "use_sliding_window": False}, None),
    ],
)
def test_texts_beyond_a_window_that_is_not_computed_are_not_taken(config: dict[str, Any], most: int | None) -> None:
    assert use_of(ModelFiles("m", config), Capability.EMBED).max_tokens == most
    assert use_of(ModelFiles("m", config), Capability.SCORE).max_tokens == most


def test_the_default_prompt_is_put_before_each_text() -> None:
    sentences = {"prompts": {"query": "q: ", "passage": "p: ", "odd": 7}, "default_prompt_name": "passage"}
    assert use_of(ModelFiles("own", _MISTRAL, sentences=sentences)).prompt == "p: "


@pytest.mark.parametrize(
    "files",
    [
        ModelFiles("Qwen/Qwen3-Reranker-0.6B", _QWEN3),
        ModelFiles("/models/mine", {**_QWEN3, "_name_or_path": "Qwen/Qwen3-Reranker-4B"}),
        ModelFiles("mine", _QWEN3, template="{{ '" + PREFIX + "' }}"),
    ],
)
def test_rerankers_by_name_or_template(files: ModelFiles) -> None:
    assert use_of(files) == _SCORES


@pytest.mark.parametrize(
    "files",
    [
        ModelFiles("org/chat", _QWEN3),
        ModelFiles("org/odd", {"model_type": "longcat_flash", "architectures": ["LongcatCausalLM"]}),
        ModelFiles("org/seen", {"model_type": "gemma4", "text_config": {"use_bidirectional_attention": "vision"}}),
        ModelFiles("mixedbread-ai/mxbai-rerank-base-v2", {"model_type": "qwen2", "architectures": "Qwen2ForCausalLM"}),
        ModelFiles("org/code", {**_QWEN3, "auto_map": {"AutoModel": "modeling.Model"}}),
        ModelFiles("org/bare", {}),
    ],
)
def test_everything_else_generates(files: ModelFiles) -> None:
    assert use_of(files) == PLAIN_USE


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (ModelFiles("Alibaba-NLP/gte-Qwen2-7B-instruct", {"model_type": "qwen2", "is_causal": False}), "is_causal"),
        (ModelFiles("mlx/gte-Qwen2-1.5B", {"model_type": "qwen2"}), "gte-qwen2 attend in both directions"),
        (ModelFiles("mine", {"model_type": "gemma3_text", "use_bidirectional_attention": True}), "use_bidirectional"),
        (ModelFiles("google/embeddinggemma-300m", {"model_type": "gemma3_text"}), "embeddinggemma attend"),
        (
            ModelFiles("nvidia/NV-Embed-v2", {"model_type": "nvembed", "architectures": ["NVEmbedModel"]}),
            "NVEmbedModel",
        ),
        (ModelFiles("mine", {"model_type": "llama_bidirec"}), "llama_bidirec is an encoder"),
        (ModelFiles("mine", {"model_type": "llama", "architectures": ["LlamaBiModel"]}), "LlamaBiModel is an encoder"),
        *((ModelFiles("m", {"model_type": kind}), "an encoder") for kind in ("deberta-v2", "mpnet", "distilbert")),
        (
            ModelFiles("x/Qwen3-Reranker-seq-cls", {**_QWEN3, "architectures": ["Qwen3ForSequenceClassification"]}),
            r"score\.weight",
        ),
        (ModelFiles("m", _MISTRAL, modules("Transformer", "Pooling", "Dense")), "does not compute: Dense"),
        (ModelFiles("m", _MISTRAL, _SENTENCE, pooled_by("cls_token")), "mode cls_token"),
        (ModelFiles("m", _MISTRAL, _SENTENCE, {"pooling_mode": ["mean", "lasttoken"]}), "mode lasttoken, mean"),
        (ModelFiles("m", _MISTRAL, _SENTENCE, pooled_by("max_tokens")), "mode max_tokens"),
        (
            ModelFiles("m", _MISTRAL, _SENTENCE, pooled_by("mean_tokens", pooling_mode_lasttoken=True)),
            "mode lasttoken, mean_tokens",
        ),
        (ModelFiles("m", _MISTRAL, _SENTENCE, pooled_by("mean_tokens", include_prompt=False)), "leaves the prompt out"),
        (ModelFiles("m", {**_MISTRAL, "auto_map": {"AutoModel": "modeling.Model"}}), "Python code of their own"),
    ],
)
def test_models_that_would_give_wrong_numbers_are_refused(files: ModelFiles, reason: str) -> None:
    assert re.search(reason, use_of(files).refusal)


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (Capability.GENERATE, PLAIN_USE),
        (Capability.EMBED, replace(_EMBEDS, size=4096, least=4096, end="</s>")),
        (Capability.SCORE, _SCORES),
    ],
)
def test_a_setting_decides_where_the_network_allows_it(task: Capability, expected: ModelUse) -> None:
    own_code = {**_MISTRAL, "auto_map": {"AutoModel": "modeling.Model"}}
    assert use_of(ModelFiles("intfloat/e5-mistral-7b-instruct", own_code), task) == expected
    other = use_of(ModelFiles("m", {**_MISTRAL, "is_causal": False}), task)
    assert (other.refusal == "") == (task is Capability.GENERATE)


_SEES = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "vision_config": {"depth": 2}}


def test_a_tower_of_a_known_family_sees() -> None:
    assert use_of(ModelFiles("own", _SEES, prepares_images=True)).capabilities == GENERATES | {Capability.SEE}
    assert use_of(ModelFiles("own", _SEES, prepares_images=True), Capability.GENERATE).capabilities > GENERATES


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (ModelFiles("own", _SEES), "it has no preprocessor_config.json"),
        (ModelFiles("own", _SEES, prepares_images=True, has_tower=False), "it has no weights for images"),
        (ModelFiles("own", {**_SEES, "model_type": "molmo"}, prepares_images=True), "those of molmo models"),
    ],
)
def test_a_tower_that_is_not_computed_says_why_and_leaves_the_text(files: ModelFiles, reason: str) -> None:
    use = use_of(files)
    assert use.capabilities == GENERATES
    assert reason in use.unseen


def test_a_model_without_a_tower_says_nothing_about_images() -> None:
    assert use_of(ModelFiles("own", {**_QWEN3, "vision_config": None}, prepares_images=True)).unseen == ""
