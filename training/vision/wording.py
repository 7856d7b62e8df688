"""A question, and the words that questions of all kinds share."""

from collections.abc import Callable
from random import Random
from typing import NamedTuple

from training.vision.scene import Scene


class Question(NamedTuple):
    """`answer`: a sentence. `alone`: the answer in as few words as it takes. `task`: for the scores."""

    task: str
    text: str
    answer: str
    alone: str


Ask = Callable[[Scene, Random], Question | None]


def plural(words: str) -> str:
    return words + ("es" if words.endswith("cross") else "s")


def there_are(count: int, of: str) -> str:
    if count == 0:
        return f"There are no {plural(of)}."
    return f"There is 1 {of}." if count == 1 else f"There are {count} {plural(of)}."


def article(words: str) -> str:
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def color_word(random: Random) -> str:
    return random.choice(("color", "colour"))


def in_picture(random: Random) -> str:
    return random.choice(("", "", "", " in the picture", " in the image", " in this image", " in this picture"))


def how_many(of: str, random: Random) -> str:
    return random.choice(
        (
            f"How many {of}?",
            f"How many {of} are there{in_picture(random)}?",
            f"How many {of} do you see?",
            f"Count the {of}.",
            f"How many {of} can you see{in_picture(random)}?",
        )
    )


__all__ = ("Ask", "Question", "article", "color_word", "how_many", "in_picture", "plural", "there_are")
