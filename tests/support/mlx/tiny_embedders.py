"""Folders of tiny models that embed or rerank, as their publishers leave them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlx.utils import tree_flatten

from tests.support.mlx import tiny_tokenizers
from tests.support.mlx.tiny_models import build_from, config_of, mx, save

_QUERY = "Instruct: Find the passage that answers\nQuery:"


def embedder_folder(
    folder: Path,
    family: str = "qwen3",
    *,
    model_type: str = "",
    mode: str = "lasttoken",
    is_normalized: bool = True,
    is_bare: bool = True,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """A model of sentence-transformers. `family`: of the tiny configuration; `model_type`: as the files name it.
    `is_bare`: without the trunk's prefix and the output matrix."""
    model_type = model_type or family
    modules = ["Transformer", "Pooling", *(["Normalize"] if is_normalized else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    network, config = _written(folder, family, seed, changes)
    if is_bare:
        trunk = {name: weight for name, weight in tree_flatten(network.parameters()) if name.startswith("model.")}
        weights = {name.removeprefix("model."): weight for name, weight in trunk.items()}
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
        config["architectures"] = [f"{model_type.replace('_', ' ').title().replace(' ', '')}Model"]
    _write(folder / "config.json", {**config, "model_type": model_type})
    _write(
        folder / "modules.json",
        [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (kind, path) in enumerate(zip(modules, paths, strict=False))
        ],
    )
    (folder / "1_Pooling").mkdir()
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, f"pooling_mode_{mode}": True})
    _write(
        folder / "config_sentence_transformers.json",
        {"prompts": {"query": _QUERY, "document": ""}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    )
    return folder


def reranker_folder(folder: Path, *, seed: int = 0) -> Path:
    """A model with Qwen3-Reranker's name and tokens: `folder` should end with it."""
    _, config = _written(folder, "qwen3", seed, {"tie_word_embeddings": True})
    _write(folder / "config.json", {**config, "architectures": ["Qwen3ForCausalLM"]})
    return folder


def trunk_states(folder: Path, family: str, token_ids: Sequence[int], seed: int = 0) -> mx.array:
    """The hidden states [tokens, hidden] of a text in one pass of the same random network, with nothing of Cairn."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    network = build_from({**config, "model_type": family}, seed=seed)
    text = network.language_model if "language_model" in network else network
    states: mx.array = text.model(mx.array([list(token_ids)]))[0]
    return states


def _written(folder: Path, family: str, seed: int, changes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Writes tokenizer and weights; returns the network and its configuration."""
    tokenizer = tiny_tokenizers.qwen3(ends_texts=True)
    tiny_tokenizers.write_folder(folder, tokenizer, None, eos_token="<|endoftext|>")
    config = config_of(family, vocab_size=tokenizer.get_vocab_size(), **changes)
    network = build_from(config, seed=seed)
    save(network, folder)
    return network, config


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
