"""Turn three Debian packages into the corpus: `python -m training.text.prepare_corpus FOLDER`.

FOLDER holds python3.11-doc, wordnet-base and dict-jargon unpacked, each in a folder of its name. Writes corpus.json.xz
and words.json beside this file.
"""

import argparse
import gzip
import json
import lzma
import random
import re
from pathlib import Path

from training.text.corpus import CORPUS, WORDS

_KINDS = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
_NUM_WORDS = 3000

_DROPPED_DIRECTIVES = (
    "index|versionadded|versionchanged|deprecated|module|sectionauthor|moduleauthor|highlight|toctree|contents|only"
    "|rubric|_"
)
_DESCRIPTIONS = (
    "function|class|method|data|attribute|exception|macro|type|member|opcode|option|cmdoption|describe|decorator"
    "|classmethod|staticmethod"
)
_CLEANING = (
    (r":[a-zA-Z:+-]+:`[~!.]?([^`<]*?)(?: ?<[^`>]*>)?`", r"`\1`"),
    (rf"(?m)^\.\. ({_DROPPED_DIRECTIVES})[^\n]*\n(?:[ \t]+[^\n]*\n)*", ""),
    (r"(?m)^\.\. _[^\n]*\n", ""),
    (rf"(?m)^\.\. (?:c:)?({_DESCRIPTIONS})::? ?", ""),
    (r"(?m)^\.\. (note|warning|seealso|impl-detail|tip|important)::", "Note:"),
    (r"(?m)^\.\. [a-z-]+::[^\n]*\n", ""),
    (r"(?m)^([=\-~^\"*#+]{4,})$", ""),
    (r"``", "`"),
    (r"[ \t]+\n", "\n"),
    (r"\n{3,}", "\n\n"),
)
"""reStructuredText to plain text, in this order."""

UNWANTED = re.compile(
    "sex|rape|slut|whore|fuck|shit|nigg|cunt|porn|anus|penis|vagina|bitch|slave|nazi|incest|orgas|genital|prostitut"
    "|masturb",
    re.IGNORECASE,
)
"""Entries with these are left out: a demo model need not know them."""


def python_documents(folder: Path) -> list[str]:
    """The documentation of Python as plain ASCII texts."""
    sources = folder / "python3.11-doc/usr/share/doc/python3.11/html/_sources"
    texts: list[str] = []
    for path in sorted(str(path) for path in sources.rglob("*.txt")):
        if any(part in path for part in ("license.rst", "/changelog", "genindex", "distutils")):
            continue
        text = Path(path).read_text(errors="replace")
        for pattern, replacement in _CLEANING:
            text = re.sub(pattern, replacement, text)
        text = _ascii(text.strip()).replace("???", "")
        if len(text) > 400:
            texts.append(text)
    return texts


def definitions(folder: Path) -> list[list]:
    """WordNet's entries as (kind of word, up to four words, gloss), shuffled with a fixed seed."""
    entries: list[list] = []
    for suffix, kind in _KINDS.items():
        for line in _data_lines(folder / f"wordnet-base/usr/share/wordnet/data.{suffix}"):
            head, gloss = line.split("|", 1)
            fields = head.split()
            words = [
                re.sub(r"\(.*?\)", "", fields[4 + 2 * index]).replace("_", " ") for index in range(int(fields[3], 16))
            ]
            entry = [kind, words[:4], gloss.strip()]
            if not UNWANTED.search(" ".join(entry[1]) + entry[2]):
                entries.append(entry)
    random.Random(0).shuffle(entries)
    return entries


def frequent_nouns(folder: Path) -> list[str]:
    """Nouns of three to nine letters, the most frequently tagged first."""
    frequency: dict[str, float] = {}
    for line in _data_lines(folder / "wordnet-base/usr/share/wordnet/index.noun"):
        fields = line.split()
        word, num_pointers = fields[0], int(fields[3])
        if re.fullmatch(r"[a-z]{3,9}", word):
            frequency[word] = frequency.get(word, 0) + int(fields[5 + num_pointers]) + 0.01 * int(fields[2])
    ordered = sorted(frequency, key=lambda word: -frequency[word])
    return [word for word in ordered if not UNWANTED.search(word)][:_NUM_WORDS]


def jargon_entries(folder: Path) -> list[str]:
    """The Jargon File, an entry a text."""
    with gzip.open(folder / "dict-jargon/usr/share/dictd/jargon.dict.dz") as file:
        text = _ascii(file.read().decode("utf8", "replace"))
    entries = [re.sub(r"\n {3,}", "\n", entry).strip() for entry in re.split(r"\n(?=\S)", text) if len(entry) > 120]
    return [entry for entry in entries if not UNWANTED.search(entry)]


def _data_lines(path: Path) -> list[str]:
    """Lines of a WordNet file below its licence, which is indented."""
    with path.open(errors="replace") as file:
        return [line for line in file if not line.startswith("  ")]


def _ascii(text: str) -> str:
    return text.encode("ascii", "replace").decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    documents = {
        "pydoc": python_documents(folder),
        "wordnet": definitions(folder),
        "jargon": jargon_entries(folder),
    }
    words = frequent_nouns(folder)
    WORDS.write_text(json.dumps(words))
    CORPUS.write_bytes(lzma.compress(json.dumps(documents).encode(), preset=9))
    print({name: len(entries) for name, entries in documents.items()}, len(words), "words")


if __name__ == "__main__":
    main()
