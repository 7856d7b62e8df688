"""Tokenizers of every decoding family, trained in a moment on a few lines, written as model folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from adapters.tokenizers.loader import HfTokenizerLoader
from application.ports.tokenizer import Tokenizer as TokenizerPort
from domain.ids import ModelId
from domain.models.capability import PLAIN_USE, ModelUse
from domain.models.model_card import ModelSource

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXT = [
    "The quick brown fox jumps over the lazy dog. What is the code of Alice? The code of Alice is 48213.",
    "Hello there, how are you today? I am fine, thank you; and you? system user assistant probe Zebra",
    "naïve café über straße, don't stop!   three   spaces\n\nand lines\n\tand tabs",
] * 8


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: bytes written as characters, merged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=500, special_tokens=SPECIAL, initial_alphabet=alphabet))


def qwen3(*, ends_texts: bool = False) -> Tokenizer:
    """As Qwen3: its division of texts, its control tokens and the words of a reranker. `ends_texts`: it adds
    `<|endoftext|>`, as that of Qwen3-Embedding does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = [*SPECIAL, "<|endoftext|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*TEXT, *["yes", "no", "<Instruct>: query", "<Document>: text"] * 40], trainer)
    tokenizer.add_tokens(["<think>", "</think>"])
    if ends_texts:
        end = "<|endoftext|>", tokenizer.token_to_id("<|endoftext|>")
        tokenizer.post_processor = processors.TemplateProcessing(single="$A <|endoftext|>", special_tokens=[end])
    return tokenizer


def sentence_piece(*, strips: bool = True) -> Tokenizer:
    """As Llama 2 (strips the leading space) and Gemma (does not): word marks, and bytes for what is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    mark = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), mark]) if strips else mark
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    special = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    trained = _trained(tokenizer, trainers.BpeTrainer(vocab_size=700, special_tokens=special))
    content = json.loads(trained.to_str())
    content["added_tokens"] = [one for one in content["added_tokens"] if not one["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(content))


def metaspace() -> Tokenizer:
    """As XLNet and many Unigram models."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return _trained(tokenizer, trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL))


def word_piece() -> Tokenizer:
    """As BERT: a token's spelling depends on its neighbours, so only windows decode it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return _trained(tokenizer, trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL))


FAMILIES: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "llama_2": sentence_piece,
    "gemma": lambda: sentence_piece(strips=False),
    "metaspace": metaspace,
    "word_piece": word_piece,
}


def write_folder(folder: Path, tokenizer: Tokenizer, template: str | None = CHATML, **config: Any) -> Path:
    """Write the tokenizer's part of a model folder; `config` goes to tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "unk_token": "<unk>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def load_folder(folder: Path, use: ModelUse = PLAIN_USE) -> TokenizerPort:
    return HfTokenizerLoader().load(ModelSource(ModelId("tiny"), str(folder), use=use))


def _trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    trainer.show_progress = False
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return tokenizer
