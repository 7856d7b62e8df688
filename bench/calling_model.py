"""Tiny models with a long context that call one tool, and answer with one sentence once there is a result.

Their weights are written by hand, and their tokenizer has a token for the whole call and one for the whole answer. The
embedding of a token is a vector of its own, and the output layer maps it to its successor. One attention head looks for
the token that begins a tool's result; what it finds decides what follows the prompt.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from bench.long_context_models import CONTEXT_LENGTH, write_model

_THINKING = "{%- if think %}{{- '<think>\\n' }}{%- endif %}"
"""The model does not think, so that its prompts end alike."""

HEAD_DIM = 32
SHARPNESS = 8.0
"""Of attention: the result's token gets all of it among 100,000 others."""


def write_calling_model(call: dict[str, Any], answer: str, folder: Path) -> Path:
    """A folder with a model that makes `call`, a name and arguments, and then says `answer`."""
    tokenizer: Any = json.loads((Path(str(embedded_folder(EMBEDDED_IDS[0]))) / "tokenizer.json").read_text("utf-8"))
    ids = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    newline = tokenizer["model"]["vocab"]["\u010a"]  # as byte-level vocabularies write it
    size = 1 + max(*tokenizer["model"]["vocab"].values(), *ids.values())
    written = f"\n{json.dumps(call)}\n"
    for id, text in ((size, written), (size + 1, answer)):
        plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        tokenizer["added_tokens"].append({"id": id, "content": text, **plain})
    end = ids["<|im_end|>"]
    calling, answering = [ids["<tool_call>"], size, ids["</tool_call>"], end], [size + 1, end]
    config = _config(size + 2)
    network = _network(config)
    weights = _weights(config, newline, calling, answering, ids["<tool_response>"])
    network.load_weights([(name, mx.array(value)) for name, value in weights.items()])
    write_model(network, config, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text("utf-8").replace(_THINKING, ""), encoding="utf-8")
    return folder


def _config(num_tokens: int) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "hidden_size": num_tokens + 8, "num_hidden_layers": 1, "intermediate_size": 16,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD_DIM, "vocab_size": num_tokens,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": CONTEXT_LENGTH,
        "rope_theta": 1e6,
    }  # fmt: skip


def _network(config: dict[str, Any]) -> Any:
    from importlib import import_module

    module = import_module(f"{mlx_lm_module('models').__name__}.{config['model_type']}")
    return module.Model(module.ModelArgs.from_dict(config))


def _weights(
    config: dict[str, Any], first: int, calling: Sequence[int], answering: Sequence[int], result: int
) -> dict[str, Any]:
    """Beside the tokens' own dimensions of the hidden state: one that is always 1, and one that the head sets to 1."""
    size, hidden = config["vocab_size"], config["hidden_size"]
    one, found = size, size + 1
    zeros = {name: np.zeros(shape, np.float32) for name, shape in _shapes(config).items()}
    layer = "model.layers.0."
    embedding, output = zeros["model.embed_tokens.weight"], zeros["lm_head.weight"]
    embedding[np.arange(size), np.arange(size)] = 1
    embedding[:, one] = 1
    slow = HEAD_DIM // 2 - 1  # the pair that positions turn least
    zeros[layer + "self_attn.q_proj.weight"][slow, one] = 1
    zeros[layer + "self_attn.k_proj.weight"][slow, result] = 1
    zeros[layer + "self_attn.v_proj.weight"][0, result] = (2 / hidden) ** 0.5  # undoes the norm before it
    zeros[layer + "self_attn.o_proj.weight"][found, 0] = 1
    for name, value in zeros.items():
        if "norm" in name:
            value[:] = SHARPNESS if "q_norm" in name else 1
    for chain in (calling, answering):
        for now, following in pairwise(chain):
            output[following, now] = 1
    output[calling[0], first], output[answering[0], first], output[calling[0], found] = 1, 0.5, -0.9
    return zeros


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    from mlx.utils import tree_flatten

    return {name: tuple(value.shape) for name, value in tree_flatten(_network(config).parameters())}
