"""Chats that the embedded models answer reliably, with the exact answers; deterministic for a seed.

Reliable (0.96 to 1.00 on the models' cards, up to 4,096 tokens): kv, needle, memory, jsonx, tools_ep, talk. Ask with
temperature 0 and `enable_thinking=False`. A single chat may still be answered wrongly; demand a share, or compare with
and without what is under test.
"""

import functools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import training
from adapters.huggingface.model_folder import EMBEDDED_IDS, embedded_folder
from training.tasks import TASKS, Draw, Episode, Material, Turn
from training.tasks.tool_use import TOOLS, tool_definition, tool_use

_SENTENCES = (
    "A cairn is a pile of stones that marks a path",
    "The path climbs from the river to the old stone house",
    "Snow covers the upper part of the trail until early summer",
    "Walkers add a stone when they pass, so that the mark stays high",
    "The weather in the hills can change within an hour",
    "A map shows the height of each place and the way between them",
    "The function returns a new list and leaves its argument unchanged",
    "An exception is raised when the file does not exist",
    "The default value is used if no other value is given",
    "This module provides access to some variables used by the interpreter",
    "The bridge was built of wood and had to be repaired each spring",
    "In the evening the light falls on the western side of the valley",
    "A small lake lies behind the second ridge and feeds two streams",
    "The method may be called more than once with the same effect",
    "Objects of this type can be compared with each other",
    "The village has a school, a bakery and a short railway line",
    "Most visitors come in autumn, when the air is clear",
    "The guide carries a rope, a lamp and enough water for the day",
    "If the argument is omitted, the current directory is searched",
    "The old road is closed to cars and open to bicycles",
    "Sheep graze on the slopes and come down before the first frost",
    "The returned string contains no newline at the end",
    "A signpost at the crossing gives the time on foot in hours",
    "The wind has turned the trees on the ridge to one side",
)


@functools.cache
def material() -> Material:
    """The words the models know, and a little prose that nobody else owns."""
    words: list[str] = json.loads((Path(training.__file__).parent / "text" / "words.json").read_text())
    shuffled = random.Random(1)
    texts = [". ".join(shuffled.choices(_SENTENCES, k=150)) + "." for _ in range(8)]
    glosses = [sentence[0].lower() + sentence[1:] for sentence in _SENTENCES]
    definitions = [("noun", [word], glosses[at % len(glosses)]) for at, word in enumerate(words[:200])]
    return Material(words, texts, definitions)


@functools.cache
def tokenizer() -> Tokenizer:
    """The embedded models' tokenizer, without a server."""
    return Tokenizer.from_file(f"{embedded_folder(EMBEDDED_IDS[0])}/tokenizer.json")


@dataclass(frozen=True, slots=True)
class DemoChat:
    """`messages`: a request's, in OpenAI's shape, ending with a question. `answer`: exactly what is right."""

    task: str
    messages: tuple[dict[str, Any], ...]
    answer: str
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def tool_call(self) -> tuple[str, dict[str, Any]] | None:
        """Name and arguments, where calling a tool is the right answer."""
        return _call_in(self.answer)


def demo_chats(task: str, count: int, *, num_tokens: int = 1500, seed: int = 0) -> list[DemoChat]:
    """Chats of one question each; their messages have 0.8 to 1.2 times `num_tokens` where the task can be that long.

    Tasks: kv, needle, memory, jsonx, talk (always short), tools_ep (always short).
    """
    draw = Draw(seed, material())
    chats: list[DemoChat] = []
    for _ in range(2000):
        tools = (draw.random.choice(list(TOOLS)),) if task == "tools_ep" else ()
        episode = _episode(draw, task, int(num_tokens * 1.3), tools)
        chat = next(_questions(task, episode.turns, tools), None) if episode else None
        if task == "memory" and episode:
            *_, chat = _questions(task, episode.turns, tools)
        if chat is not None and (task not in {"kv", "needle"} or _fits(chat, num_tokens)):
            chats.append(chat)
        if len(chats) == count:
            return chats
    raise ValueError(f"no {count} {task} chats of {num_tokens} tokens")


def demo_conversation(task: str, *, num_tokens: int = 1500, seed: int = 0) -> list[DemoChat]:
    """One conversation as its successive requests, each with the right answers to the earlier ones in its history."""
    draw = Draw(seed, material())
    for _ in range(2000):
        tools = (draw.random.choice(list(TOOLS)),) if task == "tools_ep" else ()
        episode = _episode(draw, task, int(num_tokens * 1.3), tools)
        chats = list(_questions(task, episode.turns, tools)) if episode else []
        if len(chats) > 1 and (task not in {"kv", "needle"} or _fits(chats[0], num_tokens)):
            return chats
    raise ValueError(f"no {task} conversation of {num_tokens} tokens")


def _episode(draw: Draw, task: str, room: int, tools: tuple[str, ...]) -> Episode | None:
    if tools:
        episode = tool_use(draw, room, tools)
        return episode if _call_in(episode.turns[1].text) else None
    return next(one for one in TASKS if one.name == task).write(draw, room)


def _fits(chat: DemoChat, num_tokens: int) -> bool:
    length = sum(len(tokenizer().encode(message["content"]).ids) for message in chat.messages)
    return 0.8 * num_tokens <= length <= 1.2 * num_tokens


def _questions(task: str, turns: list[Turn], tools: tuple[str, ...]) -> Iterator[DemoChat]:
    specs = tuple({"type": "function", "function": tool_definition(name)} for name in tools)
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if turn.role == "assistant" and turn.text != "Okay.":
            yield DemoChat(task, tuple(messages), turn.text, specs)
        messages.append(_message(turn, len(messages)))


def _message(turn: Turn, at: int) -> dict[str, Any]:
    if turn.role == "tool":
        return {"role": "tool", "tool_call_id": f"call_{at - 1}", "content": turn.text}
    called = _call_in(turn.text) if turn.role == "assistant" else None
    if called is None:
        return {"role": turn.role, "content": turn.text}
    function = {"name": called[0], "arguments": json.dumps(called[1])}
    call = {"id": f"call_{at}", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _call_in(text: str) -> tuple[str, dict[str, Any]] | None:
    if not text.startswith("<tool_call>"):
        return None
    call = json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    return call["name"], call["arguments"]
