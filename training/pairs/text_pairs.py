"""Pairs of texts that mean the same, for the embedded embedding model: WordNet, a thesaurus, documentation.

A pair is (group, text, text). Pairs of one group (a WordNet entry, a section) are never taken for different meanings.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from training.text.prepare_corpus import UNWANTED, jargon_entries, python_documents

_SIMILAR = frozenset({"@", "~", "&", "+", "*", ">", "$", "=", ";c", "-c", "#p", "%p", "#s", "%s", "^", "\\"})
"""WordNet's pointers to entries that are more general or special, similar, derived, parts, or of the same subject."""

_SENTENCE = re.compile(r"(?<=[.!?]) +(?=[A-Z`\"])")
_MOST_CHARS = 400
_LONGEST_TITLE = 60


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of WordNet: its words, its definition, example sentences, and the entries it points to."""

    words: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]
    similar: tuple[str, ...]


def wordnet(folder: Path) -> dict[str, Entry]:
    """The entries by kind and offset."""
    found: dict[str, Entry] = {}
    for kind in ("noun", "verb", "adj", "adv"):
        with (folder / f"wordnet-base/usr/share/wordnet/data.{kind}").open(errors="replace") as file:
            for line in file:
                if not line.startswith("  ") and not UNWANTED.search(line):
                    entry = _entry(line)
                    found[f"{kind[0]}{line.split()[0]}"] = entry
    return found


def _entry(line: str) -> Entry:
    head, gloss = line.split("|", 1)
    fields = head.split()
    count = int(fields[3], 16)
    words = tuple(re.sub(r"\(.*?\)", "", fields[4 + 2 * at]).replace("_", " ") for at in range(count))
    pointers = fields[5 + 2 * count :]
    similar = tuple(
        f"{'a' if pointers[at + 2] == 's' else pointers[at + 2]}{pointers[at + 1]}"
        for at in range(0, 4 * int(fields[4 + 2 * count]), 4)
        if pointers[at] in _SIMILAR
    )
    examples = tuple(part.strip() for part in re.findall(r'"([^"]{12,})"', gloss))
    return Entry(words, re.split(r';? *"', gloss)[0].strip(" ;\n"), examples, similar)


def wordnet_pairs(entries: dict[str, Entry]) -> Iterator[tuple[str, str, str]]:
    """Words and definition, example and definition, example with another word of the entry, related definitions."""
    for key, entry in entries.items():
        names = ", ".join(entry.words[:4])
        yield key, names, entry.definition
        for word in entry.words[:3]:
            yield key, word, f"{names}: {entry.definition}"
        for example in entry.examples:
            yield key, example, f"{names}: {entry.definition}"
            yield from ((key, example, changed) for changed in _reworded(example, entry.words))
        yield from ((key, one, other) for one, other in pairwise(entry.examples))
        for other in (entries[at] for at in entry.similar[:3] if at in entries):
            yield key, f"{names}: {entry.definition}", f"{', '.join(other.words[:3])}: {other.definition}"


def _reworded(example: str, words: tuple[str, ...]) -> Iterator[str]:
    for word in words:
        if re.search(rf"\b{re.escape(word)}\b", example):
            yield from (re.sub(rf"\b{re.escape(word)}\b", other, example) for other in words[:4] if other != word)
            return


def thesaurus(folder: Path) -> dict[str, tuple[str, ...]]:
    """Moby's entries: a word, and the words of its field."""
    found: dict[str, tuple[str, ...]] = {}
    for line in (folder / "moby/words.txt").read_text(encoding="utf-8", errors="replace").splitlines():
        word, *others = line.split(",")
        if not UNWANTED.search(word):
            found[word] = tuple(other for other in others if not UNWANTED.search(other))
    return found


def related_words(entries: Mapping[str, Entry], fields: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """By word: words of the first two entries that have it, of those they point to, and of its field."""
    senses: dict[str, list[Entry]] = {}
    for entry in entries.values():
        for word in entry.words:
            senses.setdefault(word.lower(), []).append(entry)
    found: dict[str, tuple[str, ...]] = {}
    for word, having in senses.items():
        near = [other for entry in having[:2] for at in entry.similar[:8] if (other := entries.get(at)) is not None]
        words = [other for entry in having[:2] for other in entry.words] * 3
        words += [other for entry in near for other in entry.words[:2]] + list(fields.get(word, ()))[:40]
        if others := tuple(other for other in words if other.lower() != word):
            found[word] = others
    return found


def thesaurus_pairs(fields: Mapping[str, Sequence[str]], draw: random.Random) -> Iterator[tuple[str, str, str]]:
    """A word and some of its field, and two parts of a field."""
    for word, others in fields.items():
        if len(others) >= 4:
            chosen = draw.sample(others, min(len(others), 8))
            half = len(chosen) // 2
            yield f"t{word}", word, ", ".join(chosen)
            yield f"t{word}", ", ".join(chosen[:half]), ", ".join([word, *chosen[half:]])


def reworded_pairs(
    texts: Sequence[tuple[str, str]], related: Mapping[str, Sequence[str]], draw: random.Random
) -> Iterator[tuple[str, str, str]]:
    """A text and the same with other words for many of its own, often in another order, some left out."""
    for group, text in texts:
        words = re.findall(r"[A-Za-z']+", text)
        changed = [
            draw.choice(others) if (others := related.get(word.lower())) and draw.random() < 0.6 else word
            for word in words
            if draw.random() < 0.85
        ]
        if draw.random() < 0.5:
            draw.shuffle(changed)
        if len(changed) >= 4:
            yield group, text[:_MOST_CHARS], " ".join(changed)


def document_pairs(folder: Path) -> Iterator[tuple[str, str, str]]:
    """A title and its first paragraph, neighbouring paragraphs, and a sentence with the rest of its paragraph."""
    for number, text in enumerate(documents(folder)):
        parts = [" ".join(part.split()) for part in text.split("\n\n")]
        for title, paragraph in pairwise(parts):
            if 8 < len(title) <= _LONGEST_TITLE and len(paragraph) > _LONGEST_TITLE:
                yield f"d{number}:{title}", title, paragraph[:_MOST_CHARS]
        paragraphs = [part for part in parts if len(part) > _LONGEST_TITLE and part.count(" ") > 8]
        for at, paragraph in enumerate(paragraphs):
            group = f"d{number}.{at // 4}"
            if at + 1 < len(paragraphs):
                yield group, paragraph[:_MOST_CHARS], paragraphs[at + 1][:_MOST_CHARS]
            sentences = _SENTENCE.split(paragraph)
            for chosen in range(len(sentences)) if 1 < len(sentences) < 12 else ():
                rest = " ".join(sentences[:chosen] + sentences[chosen + 1 :])
                yield group, sentences[chosen][:_MOST_CHARS], rest[:_MOST_CHARS]


def documents(folder: Path) -> Iterator[str]:
    """Python's documentation and the Jargon File, an entry a text."""
    yield from python_documents(folder)
    for entry in jargon_entries(folder):
        title, _, body = entry.partition("\n")
        yield f"{title.strip()}: {body.strip()}"


__all__ = (
    "Entry",
    "document_pairs",
    "documents",
    "related_words",
    "reworded_pairs",
    "thesaurus",
    "thesaurus_pairs",
    "wordnet",
    "wordnet_pairs",
)
