"""BERT, XLM-RoBERTa and ModernBERT in NumPy, by their papers and the published names of weights: the hidden states of
one text, and the output of a head for scores. Float64, one text at a time, nothing of MLX's modules."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Reference:
    def __init__(self, folder: Path) -> None:
        self.config: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        loaded = mx.load(str(folder / "model.safetensors"))
        assert isinstance(loaded, dict)
        prefixes = ("bert.", "roberta.", "model.")
        self._weights: dict[str, Array] = {}
        for name, value in loaded.items():
            short = next((name.removeprefix(one) for one in prefixes if name.startswith(one)), name)
            self._weights[short] = np.array(value.astype(mx.float32)).astype(np.float64)

    def states(self, ids: Sequence[int], types: Sequence[int] | None = None) -> Array:
        """[tokens, hidden]"""
        if self.config["model_type"] == "modernbert":
            return self._modern(ids)
        return self._bert(ids, types or [0] * len(ids))

    def output(self, ids: Sequence[int], types: Sequence[int] | None = None) -> float:
        """What the head gives, before the sigmoid."""
        states = self.states(ids, types)
        first = states.mean(axis=0) if self.config.get("classifier_pooling") == "mean" else states[0]
        match self.config["model_type"]:
            case "bert":
                hidden = np.tanh(self._linear(first, "pooler.dense"))
            case "modernbert":
                hidden = self._norm(gelu(self._linear(first, "head.dense")), "head.norm", 1e-5)
            case _:
                hidden = np.tanh(self._linear(first, "classifier.dense"))
                return float(self._linear(hidden, "classifier.out_proj")[0])
        return float(self._linear(hidden, "classifier")[0])

    def _bert(self, ids: Sequence[int], types: Sequence[int]) -> Array:
        eps, places = self.config["layer_norm_eps"], np.arange(len(ids))
        if self.config["model_type"] != "bert":
            places = places + self.config["pad_token_id"] + 1
        found = self._table("word_embeddings", ids) + self._table("position_embeddings", places)
        found = self._norm(found + self._table("token_type_embeddings", types), "embeddings.LayerNorm", eps)
        for at in range(self.config["num_hidden_layers"]):
            name = f"encoder.layer.{at}"
            parts = [self._linear(found, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
            seen = self._linear(self._attention(*parts), f"{name}.attention.output.dense")
            found = self._norm(seen + found, f"{name}.attention.output.LayerNorm", eps)
            inner = gelu(self._linear(found, f"{name}.intermediate.dense"))
            found = self._norm(self._linear(inner, f"{name}.output.dense") + found, f"{name}.output.LayerNorm", eps)
        return found

    def _modern(self, ids: Sequence[int]) -> Array:
        config, eps = self.config, 1e-5
        found = self._norm(self._weights["embeddings.tok_embeddings.weight"][list(ids)], "embeddings.norm", eps)
        distance = np.abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
        for at in range(config["num_hidden_layers"]):
            is_local = at % config["global_attn_every_n_layers"] != 0
            theta = config.get("local_rope_theta", 1e4) if is_local else config.get("global_rope_theta", 1.6e5)
            inner = self._norm(found, f"layers.{at}.attn_norm", eps) if at else found
            query, key, value = np.split(self._linear(inner, f"layers.{at}.attn.Wqkv"), 3, axis=-1)
            mask = np.where(distance <= config["local_attention"] // 2, 0, -np.inf) if is_local else None
            seen = self._attention(self._turned(query, theta), self._turned(key, theta), value, mask)
            found = found + self._linear(seen, f"layers.{at}.attn.Wo")
            inner = self._linear(self._norm(found, f"layers.{at}.mlp_norm", eps), f"layers.{at}.mlp.Wi")
            one, gate = np.split(inner, 2, axis=-1)
            found = found + self._linear(gelu(one) * gate, f"layers.{at}.mlp.Wo")
        return self._norm(found, "final_norm", eps)

    def _attention(self, query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
        heads = self.config["num_attention_heads"]
        query, key, value = (one.reshape(len(one), heads, -1).transpose(1, 0, 2) for one in (query, key, value))
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        scores = scores if mask is None else scores + mask
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        found = shares / shares.sum(axis=-1, keepdims=True) @ value
        return found.transpose(1, 0, 2).reshape(found.shape[1], -1)

    def _turned(self, vectors: Array, theta: float) -> Array:
        heads = vectors.reshape(len(vectors), self.config["num_attention_heads"], -1)
        half = heads.shape[-1] // 2
        angles = np.arange(len(vectors))[:, None, None] * theta ** (-np.arange(half) / half)
        one, other = heads[..., :half], heads[..., half:]
        sines, cosines = np.sin(angles), np.cos(angles)
        turned = np.concatenate([one * cosines - other * sines, other * cosines + one * sines], axis=-1)
        return turned.reshape(vectors.shape)

    def _table(self, name: str, at: Any) -> Array:
        return self._weights[f"embeddings.{name}.weight"][list(at)]

    def _linear(self, vectors: Array, name: str) -> Array:
        return vectors @ self._weights[f"{name}.weight"].T + self._weights.get(f"{name}.bias", 0)

    def _norm(self, vectors: Array, name: str, eps: float) -> Array:
        mean, variance = vectors.mean(-1, keepdims=True), vectors.var(-1, keepdims=True)
        scaled = (vectors - mean) / np.sqrt(variance + eps) * self._weights[f"{name}.weight"]
        return scaled + self._weights.get(f"{name}.bias", 0)


def gelu(vectors: Array) -> Array:
    """The exact one."""
    return vectors * 0.5 * (1 + np.vectorize(math.erf)(vectors / math.sqrt(2)))
