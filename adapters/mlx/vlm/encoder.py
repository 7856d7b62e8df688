"""Encoders: networks that attend in both directions, by mlx-vlm's modules, and one pass of whole texts.

    the module differs from the published model              here
    ModernBERT has the tanh form of GELU                     the exact one
    its masks are infinite in float16: rows of padding only  finite ones, without a copy for each token
    become NaN, and with them everything
    old files name weights `gamma` and `beta`                renamed

An encoder has no caches, by which the rest of the adapter knows it.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.speculation.drafting import nn
from adapters.mlx.vlm.library import vlm_module

_MODULES = {"roberta": "xlm_roberta", "xlm-roberta": "xlm_roberta"}
"""Modules of mlx-vlm by model type, where their names differ. RoBERTa and XLM-RoBERTa are one network."""


def encoder_classes(config: dict[str, Any], *, scores: bool) -> tuple[Callable[[Any], Any], Any]:
    """As `trunks.classes_of`, for an encoder. `scores`: with its head."""
    model_type = config["model_type"]
    module = vlm_module(f"models.{_MODULES.get(model_type, model_type)}")
    return partial(_made, module.SequenceClassificationModel if scores else module.Model), module.ModelConfig


def _made(network_class: Any, known: Any) -> Any:
    network = network_class(known)
    network.make_cache = list
    network.sanitize = partial(_sanitized, network.sanitize)
    if known.model_type == "modernbert":
        network._masks = partial(_masks, known.local_attention // 2)
        for part in [*(layer.mlp for layer in network.layers), *([network.head] if is_scorer(network) else [])]:
            part.act = nn.GELU()
    return network


def is_scorer(network: Any) -> bool:
    """True if the network has a head for scores."""
    return "classifier" in network


def encoded(network: Any, tokens: mx.array, ends: mx.array) -> mx.array:
    """Returns the hidden states [rows, length, hidden] of whole texts; of a network that scores, its outputs [rows, 1].
    Lazy. `tokens`: [rows, length]; `ends`: the length of each row, [rows, 1]. A row that is scored ends with the token
    that separates the two texts too."""
    is_text, types = mx.arange(tokens.shape[1]) < ends, mx.zeros_like(tokens)
    if is_scorer(network) and getattr(network.config, "type_vocab_size", 1) > 1:
        is_separator = (tokens == mx.take_along_axis(tokens, ends - 1, axis=1)).astype(mx.int32)
        types = ((mx.cumsum(is_separator, axis=1) > is_separator) & is_text).astype(tokens.dtype)
    found = network(tokens, attention_mask=is_text.astype(mx.int32), token_type_ids=types)
    return cast(mx.array, found.logits if is_scorer(network) else found.last_hidden_state)


def _sanitized(own: Callable[[dict[str, mx.array]], Any], weights: dict[str, mx.array]) -> Any:
    norms = {".gamma": ".weight", ".beta": ".bias"}
    return own({re.sub(r"\.(gamma|beta)$", lambda match: norms[match[0]], name): weights[name] for name in weights})


def _masks(reach: int, is_text: mx.array, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """What is added to scores in full attention, [rows, 1, 1, length], and in local attention, [rows, 1, length,
    length]. `reach`: tokens to either side."""
    least = mx.array(mx.finfo(dtype).min, dtype)
    places, seen = mx.arange(is_text.shape[1]), is_text[:, None, None, :] == 1
    near = mx.abs(places[:, None] - places) <= reach
    return mx.where(seen, 0, least).astype(dtype), mx.where(seen & near, 0, least).astype(dtype)
