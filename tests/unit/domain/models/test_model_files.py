"""The requests that a model answers, by the files of models as their publishers leave them."""

import re
from typing import Any

import pytest

from domain.models.capability import GENERATES, Capability, PoolingMethod, PoolingProfile
from domain.models.model_files import ModelFiles, use_of
from domain.request.rerank import PREFIX

_EMBEDS = frozenset({Capability.EMBED})
_SCORES = frozenset({Capability.SCORE})
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
    bare = use_of(ModelFiles(name, _QWEN3))
    assert bare.capabilities == _EMBEDS
    assert bare.pooling == PoolingProfile(PoolingMethod.LAST, dimensions=(32, 1024), end="<|endoftext|>")
    sentences = {"prompts": {"query": _QUERY, "document": ""}, "default_prompt_name": None}
    whole = use_of(ModelFiles(name, _QWEN3, _SENTENCE, pooled_by("lasttoken"), sentences))
    assert whole.pooling == PoolingProfile(
        PoolingMethod.LAST, dimensions=(32, 1024), prompts=(("query", _QUERY),), end="<|endoftext|>"
    )


@pytest.mark.parametrize(
    "name", ["intfloat/e5-mistral-7b-instruct", "Linq-AI-Research/Linq-Embed-Mistral", "x/SFR-Embedding-2_R-8bit"]
)
def test_mistrals_that_embed_end_with_their_end_token_and_are_not_cut(name: str) -> None:
    assert use_of(ModelFiles(name, _MISTRAL)).pooling == PoolingProfile(end="</s>")


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen2", "architectures": ["Qwen2Model"]},
        {"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]},
    ],
)
def test_an_architecture_without_a_head_embeds_by_the_last_token(config: dict[str, Any]) -> None:
    assert use_of(ModelFiles("own", config)).pooling == PoolingProfile()


@pytest.mark.parametrize(
    ("pooling", "kinds", "expected"),
    [
        (pooled_by("mean_tokens"), ("Transformer", "Pooling"), PoolingProfile(PoolingMethod.MEAN, is_normalized=False)),
        ({"pooling_mode": "lasttoken"}, ("Transformer", "Pooling", "Normalize"), PoolingProfile()),
        ({"pooling_mode": "mean"}, ("Transformer", "Pooling", "Normalize"), PoolingProfile(PoolingMethod.MEAN)),
    ],
)
def test_the_pooling_module_decides(pooling: dict[str, Any], kinds: tuple[str, ...], expected: PoolingProfile) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    use = use_of(ModelFiles("own", config, modules(*kinds), pooling))
    assert (use.capabilities, use.pooling) == (_EMBEDS, expected)


@pytest.mark.parametrize(
    ("config", "dimensions"),
    [
        ({"matryoshka_dimensions": [512, 128, 64]}, (64, 4096)),
        ({"is_matryoshka": True}, (1, 4096)),
        ({"matryoshka_dimensions": "all"}, None),
    ],
)
def test_shorter_vectors_where_the_configuration_names_them(config: dict[str, Any], dimensions: object) -> None:
    pooling = use_of(ModelFiles("own", {**_MISTRAL, **config})).pooling
    assert pooling is not None
    assert pooling.dimensions == dimensions


def test_the_default_prompt_is_one_of_the_named() -> None:
    sentences = {"prompts": {"query": "q: ", "passage": "p: ", "odd": 7}, "default_prompt_name": "passage"}
    pooling = use_of(ModelFiles("own", _MISTRAL, sentences=sentences)).pooling
    assert pooling is not None
    assert dict(pooling.prompts) == {"query": "q: ", "passage": "p: ", "default": "p: "}


@pytest.mark.parametrize(
    "files",
    [
        ModelFiles("Qwen/Qwen3-Reranker-0.6B", _QWEN3),
        ModelFiles("/models/mine", {**_QWEN3, "_name_or_path": "Qwen/Qwen3-Reranker-4B"}),
        ModelFiles("mine", _QWEN3, template="{{ '" + PREFIX + "' }}"),
    ],
)
def test_rerankers_by_name_or_template(files: ModelFiles) -> None:
    use = use_of(files)
    assert (use.capabilities, use.pooling) == (_SCORES, PoolingProfile())


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
    use = use_of(files)
    assert (use.capabilities, use.pooling, use.refusal) == (GENERATES, None, "")


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
        *((ModelFiles("m", {"model_type": kind}), "an encoder") for kind in ("bert", "xlm-roberta", "modernbert")),
        (
            ModelFiles("x/Qwen3-Reranker-seq-cls", {**_QWEN3, "architectures": ["Qwen3ForSequenceClassification"]}),
            r"score\.weight",
        ),
        (ModelFiles("m", _MISTRAL, modules("Transformer", "Pooling", "Dense")), "does not compute: Dense"),
        (ModelFiles("m", _MISTRAL, _SENTENCE, pooled_by("cls_token")), "mode cls_token: a causal model's first token"),
        (ModelFiles("m", _MISTRAL, _SENTENCE, {"pooling_mode": ["mean", "lasttoken"]}), "mode lasttoken, mean"),
        (ModelFiles("m", _MISTRAL, _SENTENCE, pooled_by("max_tokens")), "mode max_tokens: it is not computed"),
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
    ("task", "capabilities", "pooling"),
    [
        (Capability.GENERATE, GENERATES, None),
        (Capability.EMBED, _EMBEDS, PoolingProfile(end="</s>")),
        (Capability.SCORE, _SCORES, PoolingProfile()),
    ],
)
def test_a_setting_decides_where_the_network_allows_it(task: Capability, capabilities: object, pooling: object) -> None:
    own_code = {**_MISTRAL, "auto_map": {"AutoModel": "modeling.Model"}}
    use = use_of(ModelFiles("intfloat/e5-mistral-7b-instruct", own_code), task)
    assert (use.capabilities, use.pooling, use.refusal) == (capabilities, pooling, "")
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
        (ModelFiles("own", {**_SEES, "model_type": "molmo"}, prepares_images=True), "those of molmo models"),
    ],
)
def test_a_tower_that_is_not_computed_says_why_and_leaves_the_text(files: ModelFiles, reason: str) -> None:
    use = use_of(files)
    assert use.capabilities == GENERATES
    assert reason in use.unseen


def test_a_model_without_a_tower_says_nothing_about_images() -> None:
    assert use_of(ModelFiles("own", {**_QWEN3, "vision_config": None}, prepares_images=True)).unseen == ""
