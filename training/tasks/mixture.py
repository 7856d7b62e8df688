"""Which tasks a conversation is made of, and how often. The names are those of the model cards."""

from collections.abc import Callable
from dataclasses import dataclass

from training.tasks.draw import Draw
from training.tasks.episode import Episode
from training.tasks.key_value import key_value
from training.tasks.recall import memory, needle
from training.tasks.short_tasks import arithmetic, copy, list_lookup, transform
from training.tasks.structured import json_extraction
from training.tasks.talk import continue_text, define, talk


@dataclass(frozen=True, slots=True)
class Task:
    """`write(draw, room)` gives an episode of about `room` tokens, or None when there is no room for one."""

    name: str
    write: Callable[[Draw, int], Episode | None]
    weight: int


KEY_VALUE = Task("kv", key_value, 27)
NEEDLE = Task("needle", needle, 13)

TASKS = (
    KEY_VALUE,
    NEEDLE,
    Task("memory", memory, 11),
    Task("copy", copy, 10),
    Task("arith", arithmetic, 9),
    Task("listq", list_lookup, 9),
    Task("jsonx", json_extraction, 8),
    Task("transform", transform, 7),
    Task("talk", talk, 2),
    Task("define", define, 2),
    Task("cont", continue_text, 2),
)

__all__ = ("KEY_VALUE", "NEEDLE", "TASKS", "Task")
