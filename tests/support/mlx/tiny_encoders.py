"""Folders of tiny encoders, as sentence-transformers leaves them: BERT, XLM-RoBERTa and ModernBERT, bare or with a head
for scores."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from adapters.mlx.vlm.library import vlm_module
from tests.support.mlx import tiny_tokenizers
from tests.support.mlx.tiny_tokenizers import TEXT

_SIZES = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}


def bert() -> Tokenizer:
    """As all-MiniLM's: in lower case, and with a length that all texts are cut and padded to."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    return tokenizer


def xlm_roberta() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    return tokenizer


def modernbert() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return tokenizer


FAMILIES: dict[str, tuple[Callable[[], Tokenizer], dict[str, Any]]] = {
    "bert": (bert, {"max_position_embeddings": 160, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0}),
    "xlm-roberta": (
        xlm_roberta,
        {"max_position_embeddings": 162, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1},
    ),
    "modernbert": (
        modernbert,
        {"max_position_embeddings": 160, "local_attention": 16, "global_attn_every_n_layers": 3, "pad_token_id": 2},
    ),
}
"""By model type: the tokenizer, and the settings of each. All take 160 tokens."""

_NAMES = {"bert": "Bert", "xlm-roberta": "XLMRoberta", "roberta": "Roberta", "modernbert": "ModernBert"}
_PREFIXES = {"bert": "bert.", "xlm-roberta": "roberta.", "roberta": "roberta.", "modernbert": "model."}


def encoder_folder(
    folder: Path,
    model_type: str = "bert",
    *,
    mode: str = "mean_tokens",
    is_normalized: bool = True,
    scores: bool = False,
    dtype: mx.Dtype = mx.float32,
    **changes: Any,
) -> Path:
    """`mode`: of its Pooling module; empty for a folder without modules. `scores`: a cross-encoder. `changes`: of its
    config.json."""
    make, own = FAMILIES.get(model_type, FAMILIES["xlm-roberta"])
    tokenizer = make()
    tiny_tokenizers.write_folder(folder, tokenizer, None, eos_token=None, unk_token=None)
    head = "ForSequenceClassification" if scores else "Model"
    config = {
        **{"model_type": model_type, "architectures": [f"{_NAMES[model_type]}{head}"]},
        **_SIZES,
        **own,
        "vocab_size": tokenizer.get_vocab_size(),
        **({"id2label": {"0": "LABEL_0"}} if scores else {}),
        **changes,
    }
    write(folder / "config.json", config)
    weights = _weights(config, scores=scores)
    prefix = _PREFIXES[model_type] if scores else ""
    own_names = ("classifier.", "head.")
    named = {
        name if name.startswith(own_names) else f"{prefix}{name}": value.astype(dtype)
        for name, value in weights.items()
    }
    mx.save_safetensors(str(folder / "model.safetensors"), named, metadata={"format": "pt"})
    if mode and not scores:
        kinds = ["Transformer", "Pooling", *(["Normalize"] if is_normalized else [])]
        paths = ["", "1_Pooling", "2_Normalize"]
        modules = [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (kind, path) in enumerate(zip(kinds, paths, strict=False))
        ]
        write(folder / "modules.json", modules)
        (folder / "1_Pooling").mkdir()
        write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, f"pooling_mode_{mode}": True})
    return folder


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def _weights(config: dict[str, Any], *, scores: bool) -> dict[str, mx.array]:
    """Random weights by the published names, those that nothing needs included. Biases and norms differ from 0 and 1,
    so that none can be left out."""
    module = vlm_module(f"models.{'xlm_roberta' if 'roberta' in config['model_type'] else config['model_type']}")
    network = (module.SequenceClassificationModel if scores else module.Model)(module.ModelConfig.from_dict(config))
    mx.random.seed(7)
    found: dict[str, mx.array] = {}
    for name, value in tree_flatten(network.parameters()):
        is_matrix = value.ndim >= 2
        noise = mx.random.normal(value.shape) * (1.2 / value.shape[-1] ** 0.5 if is_matrix else 0.1)
        if "embeddings" in name and is_matrix:
            noise = mx.random.normal(value.shape)
        found[name] = noise if is_matrix or name.endswith(".bias") else 1 + noise
    pooler = "pooler.dense.weight"
    if config["model_type"] != "modernbert" and pooler not in found:
        found[pooler] = mx.zeros((config["hidden_size"], config["hidden_size"]))
    return found
