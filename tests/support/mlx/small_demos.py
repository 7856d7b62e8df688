"""The embedded models with their tokenizer, their template and their kinds of layers, and next to no arithmetic.

What a cache reuses depends on positions, templates and layers, not on what a model has learnt: these say nonsense, and
many times as fast, so that long conversations are cheap on a machine without a fast BLAS as well.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from tests.support.mlx.tiny_models import build_from, save

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
_HYBRID_SIZES: dict[str, Any] = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "num_hidden_layers": 3,
    "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}

SMALL_DEMO, SMALL_HYBRID = (f"small-{id.removeprefix('cairn-')}" for id in EMBEDDED_IDS)
SMALL_DEMOS = (SMALL_DEMO, SMALL_HYBRID)


def write_small_demos(folder: Path) -> Path:
    """Both, below `folder`, by the names in SMALL_DEMOS."""
    for id, name in zip(EMBEDDED_IDS, SMALL_DEMOS, strict=True):
        origin, made = embedded_folder(id), folder / name
        assert origin is not None
        shutil.copytree(origin, made, ignore=shutil.ignore_patterns("*.safetensors", "*.md"))
        config = _made_small(json.loads((origin / "config.json").read_text()))
        (made / "config.json").write_text(json.dumps(config))
        save(build_from(config), made)
    return folder


def _made_small(config: dict[str, Any]) -> dict[str, Any]:
    if "text_config" in config:
        return {**config, "text_config": _made_small(config["text_config"])}
    return {**config, **_SIZES, **(_HYBRID_SIZES if "layer_types" in config else {})}
