"""The requests that a model answers, decided by its files. Pure: the caller reads and parses them.

the setting `task` of the model's table       decides
a type of `ENCODERS`                          an encoder: vectors, or scores with a head for them
is_causal, other encoders and heads           are refused: computed causally they give wrong numbers, unnoticed
a name of `_KNOWN`, a reranker's template     say what the model is for, also where a conversion dropped files
modules.json with a Pooling module            a model of sentence-transformers: vectors, pooled as it says
an architecture without a head (`Qwen2Model`) vectors of the last token
everything else                               generates
a tower (`vision_config`) of a known family   sees images as well, if the files say how they are prepared
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from domain.models.capability import GENERATES, MAX_ROW, Capability, ModelUse, Pooling
from domain.models.rerank import PREFIX, SUFFIX


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's files, parsed; empty where absent. `name`: of the model. `config`: config.json. `modules`:
    modules.json. `pooling`: config.json of the Pooling module. `sentences`: config_sentence_transformers.json.
    `template`: chat_template.jinja. `prepares_images`: there is a preprocessor_config.json or processor_config.json.
    `transformer`: sentence_bert_config.json. `has_tower`: the weights have some for images."""

    name: str
    config: Mapping[str, Any]
    modules: Sequence[Mapping[str, Any]] = ()
    pooling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sentences: Mapping[str, Any] = field(default_factory=dict[str, Any])
    template: str = ""
    prepares_images: bool = False
    transformer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_tower: bool = True


_KNOWN: tuple[tuple[str, Capability | None, str, int], ...] = (
    (r"qwen3-embedding", Capability.EMBED, "<|endoftext|>", 32),
    (r"qwen3-reranker", Capability.SCORE, "", 0),
    (r"e5-mistral|linq-embed-mistral|sfr-embedding-(mistral|2)", Capability.EMBED, "</s>", 0),
    ("", None, "", 0),
)
"""Models that are known by name: what each is for, the token that ends its texts, and the length of its shortest useful
vector, 0 where vectors cannot be cut. The last entry is for all others."""

_NOT_CAUSAL = re.compile(r"gte-qwen2|nv-embed|embedding-?gemma|llama-embed-nemotron|nemoretriever|llm2vec")
_ENCODER = re.compile(r"bert|mpnet|electra|bidirec|nvembed|^[mu]?t5|Bi(Model|For)|Bidirec|Encoder")
"""Model types and architectures of networks that attend in both directions."""
_HEADS = re.compile(r"For\w*(Classification|MaskedLM|QuestionAnswering|RewardModel)$")
_COMPUTED = frozenset({"Transformer", "Pooling", "Normalize"})

ENCODERS = frozenset({"bert", "roberta", "xlm-roberta", "modernbert"})
"""The model types of encoders that are computed."""
_FIRST = re.compile(r"bge-(?!.*rerank)|mxbai-embed|snowflake-arctic-embed|gte-modernbert|granite-embedding")
_MEAN = re.compile(r"minilm|\be5-|\bgte-(small|base|large)|paraphrase-|modernbert-embed|distilroberta")
"""Names of encoders whose conversions dropped the Pooling module: the modes that their makers' files have."""
_LASTS, _FIRSTS = frozenset({"lasttoken"}), frozenset({"cls_token", "cls"})
_MEANS = frozenset({"mean_tokens", "mean"})
"""The names of a Pooling module's modes."""
_DROPPED_HEADS = ("Model", "ForMaskedLM", "ForPreTraining")
_SERVED = "Cairn computes causal models, and encoders of the types bert, roberta, xlm-roberta and modernbert"
_THETAS = {"full_attention": ("global_rope_theta", 160_000), "sliding_attention": ("local_rope_theta", 10_000)}
"""ModernBERT's settings of rotary positions in both forms of its configuration, and their defaults."""

SEEING = frozenset(
    {"idefics3", "smolvlm", "llava", "pixtral", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"}
    | {"qwen3_5", "qwen3_5_moe", "gemma3", "gemma4", "lfm2_vl"}
)
"""The model types whose images are computed."""


def use_of(files: ModelFiles, task: Capability | None = None) -> ModelUse:
    """Decides by a model's files; `task`: the setting, None for no setting."""
    names = f"{files.name}\n{files.config.get('_name_or_path', '')}".lower()
    _, known, end, least = next(one for one in _KNOWN if re.search(one[0], names))
    if task is Capability.GENERATE:
        return _seeing(files)
    if files.config.get("model_type") in ENCODERS:
        return _encoding(files, names, task)
    if reason := _why_not_causal(files, names):
        return ModelUse(refusal=f"{reason}. {_SERVED}: serve another model")
    wanted = task or known or _task_of(files)
    if wanted is Capability.GENERATE:
        return _seeing(files)
    # mlx-lm leaves out the windows of Mistral and Qwen: longer texts would have other numbers, unnoticed
    has_window = files.config.get("model_type") == "mistral" or files.config.get("use_sliding_window") is True
    window = (_count(files.config.get("sliding_window")) if has_window else 0) or None
    if wanted is Capability.SCORE:
        return ModelUse(frozenset({wanted}), start=PREFIX, end=SUFFIX, max_tokens=window)
    modes = _modes(files.pooling)
    if reason := _why_not_pooled(files, modes, is_known=(task or known) is not None):
        return ModelUse(refusal=reason)
    max_tokens = min(window or MAX_ROW, MAX_ROW) if modes & _MEANS else window
    return replace(_embedding(files, modes, least), end=end, max_tokens=max_tokens)


def _embedding(files: ModelFiles, modes: frozenset[str], least: int = 0) -> ModelUse:
    """`least`: the length of the shortest useful vector, where the files do not say it; 0 for all of it."""
    is_normalized = not files.modules or "Normalize" in _kinds(files)
    pooling = Pooling(bool(modes & _MEANS), is_normalized, is_first=bool(modes & _FIRSTS))
    size, prompts = _count(files.config.get("hidden_size")), _object(files.sentences.get("prompts"))
    least = min(map(_count, _list(files.config.get("matryoshka_dimensions"))), default=least)
    least = least or (1 if files.config.get("is_matryoshka") is True else size)
    prompt = str(prompts.get(str(files.sentences.get("default_prompt_name")), ""))
    return ModelUse(frozenset({Capability.EMBED}), pooling, size, least, prompt)


def _encoding(files: ModelFiles, names: str, task: Capability | None) -> ModelUse:
    """The use of an encoder of a known type."""
    scores = _architecture(files).endswith("ForSequenceClassification")
    wanted = Capability.SCORE if scores else Capability.EMBED
    modes = _modes(files.pooling)
    if not modes and (found := _FIRST.search(names) or _MEAN.search(names)):
        modes = frozenset({"cls" if found.re is _FIRST else "mean"})
    reason = _why_not_encoded(files, modes, scores=scores)
    if task not in (None, wanted):
        reason = f"{_architecture(files)} can {wanted.value} only: leave task out of its table"
    if reason:
        return ModelUse(refusal=reason)
    use = ModelUse(frozenset({wanted})) if scores else _embedding(files, modes)
    most = filter(None, (_positions(files.config), _count(files.transformer.get("max_seq_length"))))
    return replace(use, max_tokens=min(most), is_encoder=True)


def _positions(config: Mapping[str, Any]) -> int:
    """The most tokens of an encoder's text; 0 if unknown. RoBERTa counts positions from behind that of padding."""
    most = _count(config.get("max_position_embeddings"))
    if str(config.get("model_type")).endswith("roberta"):
        most -= _count(config.get("pad_token_id", 1)) + 1
    return max(0, most)


def _seeing(files: ModelFiles) -> ModelUse:
    """The use of a model that generates."""
    if not _object(files.config.get("vision_config")):
        return ModelUse()
    if (model_type := files.config.get("model_type")) not in SEEING:
        return ModelUse(unseen=f"those of {model_type} models are not computed")
    if not files.prepares_images:
        return ModelUse(unseen="it has no preprocessor_config.json")
    if not files.has_tower:
        return ModelUse(unseen="it has no weights for images")
    return ModelUse(GENERATES | {Capability.SEE})


def _task_of(files: ModelFiles) -> Capability:
    if PREFIX.partition("\n")[2][:40] in files.template:
        return Capability.SCORE
    headless = str(files.config.get("model_type", "")).replace("_", "").lower() + "model"
    is_embedder = "Pooling" in _kinds(files) or _architecture(files).lower() == headless
    return Capability.EMBED if is_embedder else Capability.GENERATE


def _why_not_causal(files: ModelFiles, names: str) -> str:
    """The reason why a causal pass of the network is not the model; empty if it is."""
    for config in (files.config, _object(files.config.get("text_config"))):
        if config.get("is_causal") is False or config.get("use_bidirectional_attention") in (True, "all"):
            return "its config.json has is_causal: false or use_bidirectional_attention"
    architecture, model_type = _architecture(files), str(files.config.get("model_type", ""))
    if _HEADS.search(architecture):
        return f"{architecture} has a head that gives neither tokens nor vectors (such as score.weight)"
    if _ENCODER.search(f"{model_type}\n{architecture}"):
        return f"{architecture or model_type} is an encoder, which attends in both directions"
    found = _NOT_CAUSAL.search(names)
    return f"models named {found[0]} attend in both directions" if found else ""


def _why_not_encoded(files: ModelFiles, modes: frozenset[str], *, scores: bool) -> str:
    """The reason why an encoder's numbers would be others than its own; empty if they are its own."""
    config, architecture = files.config, _architecture(files)
    if architecture and not scores and not architecture.endswith(_DROPPED_HEADS):
        return f"{architecture} has a head that gives neither vectors nor scores"
    if config.get("auto_map"):
        return "its files name Python code of their own (auto_map), which Cairn never runs"
    act = config.get("hidden_activation" if config.get("model_type") == "modernbert" else "hidden_act", "gelu")
    if act != "gelu":
        return f"its activation is {act}, and Cairn computes gelu"
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("is_decoder"):
        return "its config.json has is_decoder or a position_embedding_type other than absolute"
    if not _positions(config):
        return "its config.json has no max_position_embeddings"
    if config.get("model_type") == "modernbert" and (reason := _why_other_layers(config)):
        return reason
    if files.transformer.get("do_lower_case") is True:
        return "its sentence_bert_config.json has do_lower_case: true, which Cairn leaves to the tokenizer"
    labels = config.get("num_labels", len(_object(config.get("id2label"))) or 1)
    if scores and labels != 1:
        return f"it has {labels} labels, and a score is that of one"
    if not scores and not modes:
        return (
            "nothing says how it is pooled: it has no 1_Pooling/config.json, and its name is of no known model; add"
            ' that file with {"pooling_mode": "mean"} or "cls", as its makers say'
        )
    return _why_not_pooled(files, modes, is_known=True, known=_FIRSTS | _LASTS | _MEANS)


def _why_other_layers(config: Mapping[str, Any]) -> str:
    """The reason why the layers of a ModernBERT are others than those that are computed; empty if they are not."""
    for kind, (name, default) in _THETAS.items():
        rope, theta = _object(_object(config.get("rope_parameters")).get(kind)), config.get(name, default)
        if rope.get("rope_type", "default") != "default" or rope.get("rope_theta", theta) != theta:
            return f"its rope_parameters for {kind} are not a rope_theta of {theta}"
    every, count = _count(config.get("global_attn_every_n_layers", 3)), _count(config.get("num_hidden_layers"))
    layers = ["sliding_attention" if at % (every or 1) else "full_attention" for at in range(count)]
    if config.get("layer_types", layers) != layers or config.get("rope_scaling"):
        return f"its layer_types or rope_scaling differ from full attention in every layer of {every}"
    return ""


def _why_not_pooled(
    files: ModelFiles, modes: frozenset[str], *, is_known: bool, known: frozenset[str] | None = None
) -> str:
    """The reason why its vectors would be others than its own; empty if they are its own. `known`: the modes that are
    computed, None for those of causal models."""
    if not is_known and "AutoModel" in _object(files.config.get("auto_map")):
        return (
            "its files name Python code of their own (auto_map), which Cairn never runs and which may attend or pool in"
            ' another way; set task = "embed" in its table if the last token\'s state is known to be right'
        )
    if others := sorted(_kinds(files) - _COMPUTED):
        return f"its modules.json has a module that Cairn does not compute: {', '.join(others)}"
    if len(modes) > 1 or not modes <= (known or _LASTS | _MEANS):
        named = ", ".join(sorted(modes))
        first = ", or by the first token of an encoder"
        return f"its Pooling module has the mode {named}. Cairn pools by the last token or by the mean{first}"
    if modes & _MEANS and files.pooling.get("include_prompt") is False:
        return "its Pooling module leaves the prompt out of the mean, which Cairn does not compute"
    return ""


def _modes(pooling: Mapping[str, Any]) -> frozenset[str]:
    """The names of a Pooling module's modes, in either form of its configuration."""
    if named := pooling.get("pooling_mode"):
        return frozenset(map(str, _list(named) or [named]))
    prefix = "pooling_mode_"
    return frozenset(key.removeprefix(prefix) for key, is_on in pooling.items() if key.startswith(prefix) and is_on)


def _kinds(files: ModelFiles) -> frozenset[str]:
    """The names of the classes in modules.json."""
    return frozenset(str(module.get("type", "")).rpartition(".")[2] for module in files.modules)


def _architecture(files: ModelFiles) -> str:
    return str(next(iter(_list(files.config.get("architectures"))), ""))


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0


def _list(value: object) -> list[object]:
    return cast(list[object], value) if isinstance(value, list) else []


def _object(value: object) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}
