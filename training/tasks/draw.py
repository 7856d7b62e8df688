"""Random draws from a material. One generator feeds all draws, so their order is part of what a seed means."""

import random
from dataclasses import dataclass

from training.tasks.word_lists import CITIES, COLORS, NAMES


@dataclass(frozen=True, slots=True)
class Material:
    """`words`: common nouns. `texts`: documents to quote. `definitions`: (kind of word, words, gloss)."""

    words: list[str]
    texts: list[str]
    definitions: list[tuple[str, list[str], str]]


class Draw:
    """A seeded generator with the material it draws from."""

    def __init__(self, seed: int, material: Material) -> None:
        self.random = random.Random(seed)
        self.material = material

    def word(self) -> str:
        return self.random.choice(self.material.words)

    def word_or_name(self) -> str:
        return self.random.choice((self.word(), self.random.choice(NAMES), self.random.choice(CITIES)))

    def digits(self, shortest: int = 2, longest: int = 6) -> str:
        count = self.random.randint(shortest, longest)
        return str(self.random.randint(10 ** (count - 1), 10**count - 1))

    def value(self) -> str:
        """A value that cannot be guessed from its key: mostly digits."""
        kind = self.random.random()
        if kind < 0.55:
            return self.digits()
        if kind < 0.75:
            return self.word()
        if kind < 0.82:
            return self.random.choice(COLORS)
        if kind < 0.9:
            return self.random.choice(CITIES)
        return f"{self.word()}-{self.digits(2, 3)}"

    def passage(self, num_characters: int) -> str:
        """A quotation: definitions in a row, or a piece of a document."""
        if self.random.random() < 0.35:
            return self._definitions(num_characters)
        while True:
            text = self.random.choice(self.material.texts)
            if len(text) > num_characters + 50 or self.random.random() < 0.1:
                break
        start = self.random.randint(0, max(0, len(text) - num_characters))
        start = text.find(" ", start) + 1 if start else 0
        return text[start : start + num_characters].strip()

    def _definitions(self, num_characters: int) -> str:
        sentences: list[str] = []
        length = 0
        while length < num_characters:
            _, words, gloss = self.random.choice(self.material.definitions)
            sentences.append(f"{words[0].capitalize()}: {gloss}.")
            length += len(sentences[-1]) + 1
        return " ".join(sentences)[:num_characters]


__all__ = ("Draw", "Material")
