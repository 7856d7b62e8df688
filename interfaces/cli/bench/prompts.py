"""Prompts to measure with: text that no two seeds share, as conversations of a size that is stated in words."""

from collections.abc import Sequence
from typing import TypeAlias

Message: TypeAlias = dict[str, str]

WORDS = "amber birch cedar delta ember fjord grove heath inlet juniper knoll larch".split()  # noqa: SIM905

TOKENS_A_WORD = 6.0
"""About, with the tokenizers of most models; a word is a name and a number here."""

NUM_TURNS = 4
"""Of a conversation before its question: an edit in the middle leaves about half of it as it was."""


def words(seed: int, count: int) -> str:
    return " ".join(f"{WORDS[(seed + i) % 12]} {seed * 7919 + i * 31}" for i in range(count))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def conversation(seed: int, count: int) -> list[Message]:
    """A short system prompt, some turns of `count` words in all, and a question."""
    messages = [system(f"You are assistant number {seed}.")]
    for turn in range(NUM_TURNS):
        messages.append(user(words(seed + turn, count // NUM_TURNS)))
        messages.append(assistant(f"Noted, part {turn + 1}."))
    return [*messages, user(f"Say something about {seed}.")]


def edited(messages: Sequence[Message]) -> list[Message]:
    """The same with a few words put before the middle one of its long messages."""
    middle = 1 + 2 * (NUM_TURNS // 2)
    changed = user("Please look at this again: " + messages[middle]["content"])
    return [*messages[:middle], changed, *messages[middle + 1 :]]
