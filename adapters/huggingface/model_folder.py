"""A folder that holds a whole model in Hugging Face form: config.json, all weights in safetensors, a tokenizer.

Judged by names and one small file, never by opening weights, so that listing many models stays cheap.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

_TOKENIZER_PATTERNS = ("tokenizer.json", "tokenizer.model", "*.tiktoken", "tiktoken.model", "vocab.json")


def missing_from(folder: Path) -> str:
    """What keeps the folder from being a model that can be served, in words; empty when nothing does."""
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    config = read_config(folder)
    if not config.get("model_type"):
        return "its config.json names no model_type"
    if config.get("model_file") is not None:
        return "its config.json has a Python file of its own run (model_file), which Cairn never does"
    absent = _absent_weights(folder)
    if absent:
        return absent
    if not any(path.is_file() for pattern in _TOKENIZER_PATTERNS for path in folder.glob(pattern)):
        return "it has no tokenizer"
    return ""


def read_config(folder: Path) -> Mapping[str, object]:
    """The model's config; empty when it cannot be read as a JSON object."""
    return _read_object(folder / "config.json")


def newest_file_s(folder: Path) -> int:
    """Unix time at which the folder's newest file was changed; 0 for an unreadable folder."""
    try:
        return int(max((path.stat().st_mtime for path in folder.iterdir() if path.is_file()), default=0))
    except OSError:
        return 0


def weight_file_bytes(folder: Path) -> int:
    """Length of the weight files together; 0 for an unreadable folder."""
    try:
        return sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
    except OSError:
        return 0


def _absent_weights(folder: Path) -> str:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        has_weights = any(path.is_file() for path in folder.glob("model*.safetensors"))
        return "" if has_weights else "it has no model*.safetensors"
    shard_of = _read_object(index).get("weight_map")
    named = list(cast("dict[str, object]", shard_of).values()) if isinstance(shard_of, dict) else []
    shards = {shard for shard in named if isinstance(shard, str)}
    if len(shards) < len({str(shard) for shard in named}) or any(Path(shard).name != shard for shard in shards):
        return "its index of weights names what is no file of the folder"
    absent = sorted(shard for shard in shards if not (folder / shard).is_file())
    if not shards or absent:
        return f"weights are missing ({', '.join(absent[:3]) or 'the index names none'})"
    return ""


def _read_object(path: Path) -> Mapping[str, object]:
    try:
        value: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
