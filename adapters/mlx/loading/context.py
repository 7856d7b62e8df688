"""The context length of a model: tokens, prompt and completion together, and where the number comes from.

1. config.json; a scaling of positions (YaRN) is taken where it reaches further than the length beside it, because most
   files state the scaled length already
2. no limit, for models with recurrent layers only
3. the default of transformers' configuration of this model type, which the makers leave out of their files
4. the default of the code of its network, mlx-lm's or mlx-vlm's
5. tokenizer_config.json
6. 4,096
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.loading.trunks import defaults_of
from adapters.mlx.runtime.json_files import read_entries
from domain.memory.estimate import nested_config, number
from domain.models.model_card import ContextLength
from domain.models.state_layout import HitPolicy, StateLayout

_KEYS = (
    *("max_position_embeddings", "n_positions", "max_sequence_length", "model_max_length", "max_seq_len"),
    *("seq_length", "n_ctx", "max_context_length", "sequence_len"),
)
_SCALINGS = ("rope_scaling", "rope_parameters")
_TABLES = ("wpe.weight", "embed_positions.weight", "position_embeddings.weight", "position_embedding.weight")
_ASSUMED, _UNLIMITED = 4_096, 2**20
_NO_LIMIT = 10**9
"""From here on, `model_max_length` of tokenizer_config.json means that nobody knows."""


def context_of(
    config: Mapping[str, Any], layout: StateLayout, weights: Mapping[str, mx.array], folder: Path | None = None
) -> ContextLength:
    """`weights`: of the network by name, for its table of positions if it has one; `folder`: None for none."""
    rows = [array.shape[0] for name, array in weights.items() if name.endswith(_TABLES)]
    length, origin = _found(config, layout, folder)
    return ContextLength(length, origin, min(rows, default=None))


def _found(config: Mapping[str, Any], layout: StateLayout, folder: Path | None) -> tuple[int, str]:
    if length := number(config, *_KEYS):
        scaled = _scaled(config)
        return (scaled, "config.json, scaled positions") if scaled > length else (length, "config.json")
    if layout.groups and all(group.policy is HitPolicy.SNAPSHOT for group in layout.groups):
        return _UNLIMITED, "recurrent layers only"
    if length := _of_transformers(config):
        return length, "transformers' default"
    length, library = _of_arguments(config)
    if length:
        return length, f"{library}'s default"
    tokenizer = {} if folder is None else read_entries(folder / "tokenizer_config.json")
    if (length := number(tokenizer, "model_max_length")) and length < _NO_LIMIT:
        return length, "tokenizer_config.json"
    return _ASSUMED, "assumed: its files name none, see model.context_length"


def _scaled(config: Mapping[str, Any]) -> int:
    """The length that a scaling of positions is made for; 0 without one."""
    for level in (nested_config(config), config):
        for name in _SCALINGS:
            scaling = level.get(name)
            if isinstance(scaling, Mapping):
                known = cast("Mapping[str, Any]", scaling)
                original, factor = number(known, "original_max_position_embeddings"), known.get("factor")
                if original and isinstance(factor, int | float) and 1 <= factor <= 2**10:
                    return int(original * factor)
    return 0


def _of_transformers(config: Mapping[str, Any]) -> int | None:
    model_type = nested_config(config).get("model_type") or config.get("model_type")
    try:
        default = import_module("transformers").AutoConfig.for_model(str(model_type))
        return number(default.get_text_config().to_dict(), *_KEYS)
    except Exception:  # not every model type is known there, and the library may be absent
        return None


def _of_arguments(config: Mapping[str, Any]) -> tuple[int | None, str]:
    try:
        defaults, library = defaults_of(config)
        return number(defaults, *_KEYS), library
    except Exception:  # the library may have no plain class of arguments for it
        return None, ""
