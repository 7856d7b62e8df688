"""Train the tokenizer: `python -m training.text.train_tokenizer [SIZE]`, written in Hugging Face form into tok/.

Byte-level BPE with single digits and ChatML's tokens, from the corpus and generated chats.
"""

import argparse
import json
from collections.abc import Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.tasks import TASKS, Draw
from training.tasks.rendering import system_part
from training.tasks.tool_use import TOOLS, tool_definition, tool_use
from training.tasks.word_lists import CITIES, NAMES
from training.text.corpus import FOLDER, TOKENIZER, load_documents, load_material

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
)
"""Tokens of their own that people may read."""

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ROUNDS = 12_000


def build(size: int) -> Tokenizer:
    """A trained tokenizer of `size` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    return tokenizer


def _texts() -> Iterator[str]:
    documents = load_documents()
    draw = Draw(1, load_material())
    yield from _chats(draw)
    for text in documents["pydoc"]:
        yield text[:60_000]
    yield from documents["jargon"]
    for _, words, gloss in documents["wordnet"][:60_000]:
        yield f"{words[0].capitalize()}: {gloss}."
    for word in draw.material.words:
        yield from [" " + word] * 30
        yield from [word] * 6
    for name in NAMES + CITIES:
        yield from [" " + name] * 200


def _chats(draw: Draw) -> Iterator[str]:
    names = list(TOOLS)
    for _ in range(_ROUNDS):
        for task in TASKS:
            episode = task.write(draw, 300)
            yield from (turn.text for turn in episode.turns) if episode else ()
        yield from (turn.text for turn in tool_use(draw, 300, names).turns)
        yield system_part("You are a helpful assistant.", [tool_definition(draw.random.choice(names))])


def write(tokenizer: Tokenizer) -> None:
    """Save with the settings and the chat template that transformers and mlx-lm read."""
    TOKENIZER.mkdir(exist_ok=True)
    template = (FOLDER / "chat_template.jinja").read_text(encoding="utf-8").rstrip("\n")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 8192,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    tokenizer.save(str(TOKENIZER / "tokenizer.json"))
    (TOKENIZER / "chat_template.jinja").write_text(template, encoding="utf-8")
    (TOKENIZER / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", type=int, nargs="?", default=4096)
    tokenizer = build(parser.parse_args().size)
    write(tokenizer)
    print("tokens:", tokenizer.get_vocab_size())


if __name__ == "__main__":
    main()
