"""A network's drafter, from its own files or from a draft model's: see `adapters.mlx.speculation`.

mlx-lm drops the weights of a multi-token-prediction head when it loads a model. They are read from the same files here,
renamed to those of a network with one layer, and go through that family's own `sanitize`. A head that cannot be loaded
is left out with a note; a draft model was asked for, so its failure is the load's.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.loading.files import load_weights
from adapters.mlx.runtime.mlx_lm import mlx_lm_classes, mlx_lm_module
from adapters.mlx.speculation.drafting import family_of, nn
from adapters.mlx.speculation.heads import HeadNetwork, PredictionHead
from domain.errors import ModelLoadFailed
from domain.memory.estimate import number


@dataclass(frozen=True, slots=True)
class HeadNames:
    """The names of a head's weights. `prefix`: a pattern before all of them; `layer`: before those of the layer itself.
    `is_hidden_first`: the order in which the hidden state and the embedding are joined."""

    prefix: str
    hidden_norm: str
    embedding_norm: str
    projection: str
    final_norm: str
    layer: str = ""
    is_hidden_first: bool = False


_QWEN = HeadNames(
    r"(language_model\.|model\.)?mtp\.", "pre_fc_norm_hidden", "pre_fc_norm_embedding", "fc", "norm", "layers.0."
)
_NEXT_LAYER = HeadNames(r"model\.layers\.NUM_LAYERS\.", "hnorm", "enorm", "eh_proj", "shared_head.norm")
_MIMO = HeadNames(
    r"model\.mtp_layers\.0\.",
    *("hidden_layernorm", "token_layernorm", "input_proj", "final_layernorm"),
    is_hidden_first=True,
)

HEADS: Mapping[str, HeadNames] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), _QWEN),
    **dict.fromkeys(("glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "deepseek_v3", "deepseek_v32"), _NEXT_LAYER),
    "mimo": _MIMO,
}
"""By the module of mlx-lm with the family's code."""

_ANY_HEAD = rf"([\w.]*\.)?mtp[._]|{_NEXT_LAYER.prefix}"
"""The names of heads of any family."""

_ONE_LAYER: Mapping[str, Any] = {
    "num_hidden_layers": 1,
    "full_attention_interval": 1,
    "first_k_dense_replace": 0,
    "mlp_only_layers": [],
}
"""The settings of the network whose only layer is a head's."""

_SHARED = ("embed_tokens.", "shared_head.head.")
"""Copies of the trunk's matrices that some files hold again."""

_LAYER, _FINAL_NORM = "model.layers.0.", "model.norm.weight"
CONVOLUTION = "linear_attn.conv1d.weight"
"""The end of the name of a weight by whose shape `sanitize` of Qwen3.5 recognises files that mlx-lm has not
converted."""

_EXPERT = re.compile(r"(.*\.mlp)\.experts\.0\.(\w+)\.(\w+)")


def with_head(network: Any, folder: Path, config: Mapping[str, Any]) -> tuple[Any, str]:
    """Returns the network with the head that its files hold, or as it is, with a note if they hold one that cannot be
    used. Nothing is evaluated."""
    family, num_layers = family_of(network), number(config, "num_hidden_layers")
    names = HEADS.get(family)
    try:
        pattern = any_head(num_layers) if names is None else _numbered(names.prefix, num_layers)
        weights, convolution = _head_weights(folder, pattern)
        if not weights:
            return network, ""
        if names is None:
            raise ValueError(f"heads of {family} are not supported")
        found = HeadNetwork(network, _head_of(config, names, weights, convolution))
        found(mx.zeros((1, 2), dtype=mx.uint32), cache=found.make_cache())  # shapes only
        return found, ""
    except Exception as error:
        return network, f"its multi-token-prediction head cannot be used: {str(error) or type(error).__name__}"


def any_head(num_layers: int | None) -> re.Pattern[str]:
    """Matches the beginning of the names of a head's weights, of any family. `num_layers`: of the trunk."""
    return _numbered(_ANY_HEAD, num_layers)


def _numbered(prefix: str, num_layers: int | None) -> re.Pattern[str]:
    return re.compile(prefix.replace("NUM_LAYERS", str(num_layers)))


def _head_weights(folder: Path, pattern: re.Pattern[str]) -> tuple[dict[str, mx.array], mx.array | None]:
    """The head's weights by their names behind the prefix, and one weight of a convolution, of the same files if they
    have one: beside a converted trunk a head may be as its makers stored it. Not read."""
    beside = load_weights(folder, heads=True)
    weights = beside | load_weights(folder) | beside
    found = {name[match.end() :]: weight for name, weight in weights.items() if (match := pattern.match(name))}
    convolution = next((weight for name, weight in weights.items() if name.endswith(CONVOLUTION)), None)
    return {name: weight for name, weight in found.items() if not name.startswith(_SHARED)}, convolution


def _head_of(
    config: Mapping[str, Any], names: HeadNames, weights: Mapping[str, mx.array], convolution: mx.array | None
) -> PredictionHead:
    """Raises anything if a weight is missing, unknown, or of another shape."""
    inner = cast(Mapping[str, Any], config.get("text_config", config))
    one = {**inner, **_ONE_LAYER}
    model, arguments = mlx_lm_classes(config)
    layer = model(arguments.from_dict({**config, "text_config": one} if "text_config" in config else one))
    own = {names.hidden_norm: "hidden_norm", names.embedding_norm: "embedding_norm", names.projection: "projection"}
    renamed, outside = dict[str, mx.array](), dict[str, mx.array]()
    for name, weight in weights.items():
        module, _, leaf = name.rpartition(".")
        if module in own:
            outside[f"{own[module]}.{leaf}"] = weight
        elif module == names.final_norm:
            renamed[_FINAL_NORM] = weight
        else:
            renamed[_LAYER + name.removeprefix(names.layer)] = weight
    final_norm = renamed[_FINAL_NORM]
    if convolution is not None:
        renamed[_LAYER + CONVOLUTION] = convolution
    clean: dict[str, mx.array] = layer.sanitize(renamed) if hasattr(layer, "sanitize") else renamed
    clean = {f"layer.{name}": weight for name, weight in clean.items() if not name.endswith(CONVOLUTION)}
    if not any(weight is final_norm for weight in clean.values()):  # the family stores its norms less one
        outside |= {name: weight + 1.0 for name, weight in outside.items() if "norm" in name}
    head = PredictionHead(
        layer, int(inner["hidden_size"]), float(inner["rms_norm_eps"]), is_hidden_first=names.is_hidden_first
    )
    _load(head, {**_with_stacked_experts(clean), **outside})
    return head


def _with_stacked_experts(weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Stacks the experts that `sanitize` left one by one."""
    found = dict(weights)
    for first in [match for name in weights if (match := _EXPERT.fullmatch(name))]:
        base, projection, leaf = first.groups()
        parts: list[mx.array] = []
        while (name := f"{base}.experts.{len(parts)}.{projection}.{leaf}") in found:
            parts.append(found.pop(name))
        found[f"{base}.switch_mlp.{projection}.{leaf}"] = mx.stack(parts)
    return found


def _load(head: PredictionHead, weights: Mapping[str, mx.array]) -> None:
    def quantisation(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return mlx_lm_module("utils").infer_quant_config(path, module, weights)

    nn.quantize(head, class_predicate=quantisation)
    head.load_weights(list(weights.items()))
    head.eval()


# ---- a draft model -------------------------------------------------------------------------------------------------


def check_vocabularies(folder: Path, draft: Path) -> None:
    """Raises ModelLoadFailed unless both models have the same tokens, by their tokenizer.json. Slow: reads files."""
    try:
        is_same = _vocabulary(draft) == _vocabulary(folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_same = False
    if not is_same:
        raise ModelLoadFailed(
            f"the draft model {draft} must have the vocabulary of {folder}: their tokenizer.json give different tokens"
        )


def _vocabulary(folder: Path) -> dict[str, int]:
    """The id of each token. Raises one of several errors if there is no tokenizer.json that can be read."""
    found: Any = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokens = found["model"]["vocab"]
    if isinstance(tokens, list):
        tokens = {token: id for id, (token, _) in enumerate(cast(list[tuple[str, float]], tokens))}
    return {**tokens, **{added["content"]: added["id"] for added in found.get("added_tokens", ())}}
