"""An episode: a few turns about one task, written before it is known whether they fit."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """`thought`: what the assistant thinks first, where the chat shows thinking."""

    role: str
    text: str
    thought: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts an episode stated, for asking again later. `ask` draws a way to ask for a key."""

    keys: list[str]
    values: list[str]
    ask: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Episode:
    """Turns that belong together; the assistant's are what is learned."""

    turns: list[Turn]
    facts: Facts | None = None


def exchange(question: str, answer: str, thought: str | None = None) -> list[Turn]:
    """One question and its answer."""
    return [Turn("user", question), Turn("assistant", answer, thought)]


__all__ = ("Episode", "Facts", "Turn", "exchange")
