"""The texts that chats quote: read from what prepare_corpus wrote."""

import json
import lzma
from pathlib import Path

from training.tasks import Material

FOLDER = Path(__file__).parent
WORDS = FOLDER / "words.json"
CORPUS = FOLDER / "corpus.json.xz"
TOKENIZER = FOLDER / "tok"


def load_documents() -> dict[str, list]:
    """`pydoc` and `jargon`: texts. `wordnet`: (kind of word, words, gloss)."""
    return json.loads(lzma.decompress(CORPUS.read_bytes()))


def load_material() -> Material:
    """Words, texts and definitions, in the order that seeds refer to."""
    documents = load_documents()
    definitions = [(kind, words, gloss) for kind, words, gloss in documents["wordnet"]]
    return Material(load_words(), documents["pydoc"] + documents["jargon"], definitions)


def load_words() -> list[str]:
    """The 3,000 most frequent short English nouns."""
    return json.loads(WORDS.read_text(encoding="utf-8"))


__all__ = ("CORPUS", "FOLDER", "TOKENIZER", "WORDS", "load_documents", "load_material", "load_words")
