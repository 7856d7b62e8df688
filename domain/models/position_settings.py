"""The settings of rotary positions, by the names that networks read. Pure.

transformers writes one setting from its version 5 on, for what were several. Most networks read the older names only:
without them they fail, or compute with their default of the base and answer wrongly.

    rope_parameters                                        older names
    rope_theta, partial_rotary_factor                      the same, and GPT-NeoX's
    rope_type other than default, factor, ...              rope_scaling
    {full_attention: {...}, sliding_attention: {...}}      those of the first; rope_local_base_freq of the second
"""

from collections.abc import Mapping
from typing import Any, cast

from domain.memory.estimate import nested_config

_NAMES = {
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def with_older_names(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration with the older names that it lacks; itself if it lacks none."""
    inner = nested_config(config)
    added = _older(config)
    if own := _older(inner):
        added |= {name: {**inner, **own} for name, value in config.items() if value is inner}
    return {**config, **added} if added else config


def _older(level: Mapping[str, Any]) -> dict[str, Any]:
    stated = _mapping(level.get("rope_parameters")) or {}
    by_layer = {name: inner for name, value in stated.items() if (inner := _mapping(value)) is not None}
    main = by_layer.get(_FULL) or next(iter(by_layer.values()), stated)
    found = {name: main[key] for key, names in _NAMES.items() if key in main for name in names}
    if "rope_theta" in (sliding := by_layer.get(_SLIDING, {})):
        found["rope_local_base_freq"] = sliding["rope_theta"]
    scaling = {key: value for key, value in main.items() if key not in _NAMES}
    if scaling.keys() - {"rope_type", "type"}:
        found["rope_scaling"] = {"type": scaling.get("rope_type", "default"), **scaling}
    elif main and "rope_scaling" not in level:
        found["rope_scaling"] = None  # some networks have no default
    return {name: value for name, value in found.items() if level.get(name) is None}


def _mapping(value: object) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None
